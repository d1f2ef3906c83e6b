"""The capture reader has its own copy of the wire format; the hosts' encoder must agree with it."""

from __future__ import annotations

import struct

import pytest

from mrclab.experiments.measure import pcap as reader
from mrclab.experiments.measure.pcap import parse_pcap
from mrclab.hosts.mrc import wire
from mrclab.hosts.rdma import frames
from tests.support.synthetic_run import Mrc, Record, ipv6, pcap


def read(body: bytes, ev: int) -> reader.Packets:
    source, label = wire.split_ev(ev)

    class Real(Mrc):
        def frame(self) -> bytes:
            udp = struct.pack("!HHHH", source, reader.MRC_PORT, 8 + len(body) + 4, 0) + body + bytes(4)
            return ipv6(1, 9, ipv6(1, 2, udp, next_header=17, flow=label), next_header=41)

    packets = parse_pcap(pcap([Record(0, Real(), outgoing=True)]))
    assert len(packets.rows) == 1
    return packets


@pytest.mark.parametrize("opcode", [op for op in wire.Opcode if 0xC6 <= op <= 0xCB])
@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 1001, 4096])
def test_writes(opcode: wire.Opcode, stamped: bool, size: int) -> None:
    pad = -size % 4
    bth = wire.Bth(
        opcode, 0x123456, 0xFEDCBA, ack_request=True, retransmission=True, timestamp=stamped, pad_count=pad
    )
    body = bth.pack() + wire.Meth(3, 4).pack() + (wire.Tseth(77).pack() if stamped else b"")
    body += wire.Reth(1 << 40, 5, 9000).pack()
    if opcode in (wire.Opcode.WRITE_LAST_IMM, wire.Opcode.WRITE_ONLY_IMM):
        body += frames.IMM_STRUCT.pack(6)
    packets = read(body + bytes(size + pad), ev=0x0003_C01F)
    row = packets.rows[0]
    assert packets.is_data.all()
    assert (row["opcode"], row["qp"], row["psn"], row["ev"]) == (opcode, 0x123456, 0xFEDCBA, 0x0003_C01F)
    assert row["rtx"]
    assert row["payload"] == size
    assert not row["trimmed"]
    assert not read(wire.Bth(opcode, 1, 2, ack_request=True).pack() + bytes(100), ev=1).rows["rtx"][0]


@pytest.mark.parametrize(("cack", "psn"), [(10, 10), (10, 17), (0xFFFFFE, 3), (2, 0xFFFFFF)])
@pytest.mark.parametrize("reply", [False, True])
def test_sacks(cack: int, psn: int, reply: bool) -> None:
    offset = (psn - cack + (1 << 23)) % (1 << 24) - (1 << 23)
    sack = wire.Sack(
        cack_psn=cack,
        entropy=0x0002_C005,
        ack_psn_offset=offset,
        mark=wire.EvMark.SKIP_ONCE,
        probe_reply=reply,
    )
    row = read(wire.Bth(wire.Opcode.SACK, 7, cack).pack() + sack.pack(), ev=0xC001).rows[0]
    assert (row["echo_psn"], row["echo_ev"], row["probe_reply"]) == (psn, 0x0002_C005, reply)


def test_opcodes_have_the_same_numbers() -> None:
    assert {op.name: op.value for op in reader.Opcode} == {op.name: op.value for op in wire.Opcode}
