"""Bytes of RoCEv2 frames, compared with layouts written by hand and with scapy's dissector."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.contrib.roce import AETH, BTH, CNPPadding
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mrclab.hosts.rdma.frames import WireError, packet_icrc
from mrclab.hosts.roce import Endpoint, RoceConfig
from mrclab.hosts.roce.wire import (
    Bth,
    NakCode,
    Opcode,
    Syndrome,
    flow_label,
    rnr_wait_ns,
    syndrome,
    udp_source,
)
from tests.support.mrc_sim import Network, Sim, bth_offset, frame_psn, mark_ce, opcode, stream


@pytest.fixture(autouse=True)
def _scapy_takes_port_4791_for_roce(monkeypatch):
    """MRC uses the same port. Scapy would pass the packets to the layer that was first bound to the port."""
    monkeypatch.setattr(UDP, "payload_guess", [({"dport": 4791}, BTH), *UDP.payload_guess])


def run(encapsulation="plain", lengths=(10_000,), **options):
    """Run a transfer to its end and return it with all its frames."""
    config = RoceConfig(encapsulation=encapsulation, **options)
    sim = Sim(config=config, endpoint_class=Endpoint, keep_frames=True, network=Network(jitter_ns=0))
    data, region = stream(sim, list(lengths))
    sim.run(1_000_000_000)
    assert bytes(region.view) == data
    return sim, data, region


def test_bth_bytes():
    header = Bth(0x08, 0x123456, 0xABCDEF, ack_request=True, pad_count=3, solicited=True, becn=True)
    assert header.pack() == bytes.fromhex("08 b0 ffff 40 123456 80 abcdef")
    assert Bth.unpack(header.pack()) == header


@given(st.binary(max_size=40), st.integers(-5, 50))
def test_bth_of_any_bytes_is_a_header_or_a_wire_error(data, offset):
    try:
        header = Bth.unpack(data, offset)
    except WireError:
        assert offset < 0 or len(data) - offset < 12
    else:
        assert Bth.unpack(header.pack()) == header


def test_syndromes_and_timers_are_the_specifications():
    assert syndrome(Syndrome.ACK, 31) == 0x1F
    assert syndrome(Syndrome.RNR_NAK, 12) == 0x2C
    assert syndrome(Syndrome.NAK, NakCode.PSN_SEQUENCE_ERROR) == 0x60
    assert syndrome(Syndrome.NAK, NakCode.REMOTE_ACCESS_ERROR) == 0x62
    assert [rnr_wait_ns(c) for c in (0, 1, 12, 31)] == [655_360_000, 10_000, 640_000, 491_520_000]


def test_labels_and_ports_are_those_of_linux():
    # By the kernel's two functions: 0x11 * 0x22 = 0x242. Folding does not change a value below 2^20.
    assert flow_label(0x11, 0x22) == 0x242
    assert udp_source(0x242) == 0xC242
    # 0x123456 * 0xabcdef = 0xC379AAA0CCA has 44 bits. Fold it by shifts of 20 and 40, and take 20 bits.
    value = 0x123456 * 0xABCDEF
    value ^= value >> 20
    value ^= value >> 40
    assert flow_label(0x123456, 0xABCDEF) == value & 0xFFFFF == flow_label(0xABCDEF, 0x123456)
    assert udp_source(0xFFFFF) == 0xC000 | 0x3FFF ^ 0x3F


def test_a_plain_write_is_laid_out_by_hand():
    sim, data, region = run(lengths=(6,))
    frame = next(s.frame for s in sim.sightings if s.source == 0)
    label = flow_label(sim.qpns[0], sim.qpns[1])
    psn = sim.ends[0].local_attributes(sim.qpns[0]).psn
    expected = (
        struct.pack(">H", 0x86DD)
        + struct.pack(">IHBB", 6 << 28 | (26 << 2 | 2) << 20 | label, 8 + 12 + 16 + 4 + 8 + 4, 17, 64)
        + sim.ends[0].ports[frame[11]].address
        + sim.ends[1].ports[frame[11]].address
        + struct.pack(">HHHH", udp_source(label), 4791, 52, 0)
        + struct.pack(">BBHII", 0x0B, 2 << 4, 0xFFFF, sim.qpns[1], 0x80 << 24 | psn)
        + struct.pack(">QII", region.address, region.rkey, 6)
        + struct.pack(">I", 0)
        + data
        + bytes(2)
    )
    assert frame[12:-4] == expected


def test_opcodes_of_a_message_of_several_packets():
    sim, _, _ = run(lengths=(10_000, 4096, 0, 8192))
    opcodes = [opcode(s.frame) for s in sim.sightings if s.source == 0]
    assert opcodes == [0x06, 0x07, 0x09, 0x0B, 0x0B, 0x06, 0x09]
    sizes = [len(s.frame) - 62 - 12 - 4 for s in sim.sightings if s.source == 0]
    reth, imm = 16, 4
    assert sizes == [
        *(4096 + reth, 4096, 1808 + imm),
        *(4096 + reth + imm, reth + imm),
        *(4096 + reth, 4096 + imm),
    ]


@pytest.mark.parametrize("encapsulation", ["plain", "srv6"])
def test_scapy_reads_every_frame_and_finds_the_same_icrc(encapsulation):
    sim, _, _ = run(encapsulation, lengths=(9_001, 3, 0, 20_000))
    assert len(sim.sightings) > 8
    for sighting in sim.sightings:
        frame = sighting.frame
        packet = Ether(frame)
        inner = packet[IPv6].payload if encapsulation == "srv6" else packet[IPv6]
        bth = inner[BTH]
        assert bth.opcode == opcode(frame)
        assert bth.psn == frame_psn(frame)
        at = bth_offset(frame)
        ours = Bth.unpack(frame, at)
        assert (bth.dqpn, bth.padcount, bth.ackreq) == (ours.dest_qpn, ours.pad_count, ours.ack_request)
        if bth.opcode == Opcode.ACKNOWLEDGE:
            assert bth[AETH].syndrome == 0x1F
        # If a packet is built again from its fields, scapy computes the ICRC itself.
        again = IPv6(bytes(inner))
        again[BTH].icrc = None
        assert bytes(again) == bytes(inner) == frame[at - 48 :]


def test_a_cnp_is_as_scapy_has_it():
    sim, _, _ = run("plain", lengths=(100,))
    frame = next(s.frame for s in sim.sightings if s.source == 0)
    sim.ends[1].receive(frame[11], mark_ce(frame), sim.now_ns)
    [(_, ack), (_, _)] = sorted(sim.ends[1].frames_to_send(sim.now_ns), key=lambda f: -len(f[1]))
    packet = Ether(ack)
    assert packet[BTH].opcode == 0x81
    assert packet[BTH].becn == 1
    assert packet[BTH].dqpn == sim.qpns[0]
    assert packet[IPv6].tc >> 2 == 46
    assert packet[CNPPadding].reserved1 == packet[CNPPadding].reserved2 == 0
    again = IPv6(bytes(packet[IPv6]))
    again[BTH].icrc = None
    assert bytes(again) == bytes(packet[IPv6])
    sim.ends[0].receive(frame[11], ack, sim.now_ns)
    assert sim.ends[0].qp_counters(sim.qpns[0]).cnps_received == 1
    assert sim.ends[0].drops.total() == 0


@given(st.data())
def test_whatever_comes_in_is_dropped_and_counted_or_handled(data):
    """The frames are random, or real frames that were cut or damaged. Some have a correct ICRC."""
    sim = Sim(config=RoceConfig(encapsulation=data.draw(st.sampled_from(["plain", "srv6"]))),
              endpoint_class=Endpoint, keep_frames=True)  # fmt: skip
    stream(sim, [9000, 5])
    sim.run(300_000)
    end = sim.ends[data.draw(st.integers(0, 1))]
    frame = bytearray(data.draw(st.sampled_from([s.frame for s in sim.sightings])))
    kind = data.draw(st.sampled_from(["noise", "cut", "flip", "sealed"]))
    if kind == "noise":
        frame = bytearray(data.draw(st.binary(max_size=200)))
    elif kind == "cut":
        frame = frame[: data.draw(st.integers(0, len(frame)))]
    else:
        for _ in range(data.draw(st.integers(1, 6))):
            frame[data.draw(st.integers(12, len(frame) - 1))] = data.draw(st.integers(0, 255))
        if kind == "sealed" and len(frame) > bth_offset(frame) + 16:
            at = bth_offset(frame)
            frame[-4:] = packet_icrc(bytes(frame[at - 48 : at]), bytes(frame[at:-4]))
    for port in range(4):
        end.receive(port, bytes(frame), sim.now_ns)
    end.frames_to_send(sim.now_ns)
    end.next_timer()
    list(end.events())


def test_configurations_that_make_no_sense_are_refused():
    for options in (
        {"mtu_bytes": 1500}, {"qps": 0}, {"qps": 129}, {"timeout_exponent": 32}, {"retry_count": 8},
        {"rnr_timer": 32}, {"window_bytes": 0}, {"encapsulation": "gre"}, {"dscp_cnp": 64},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=next(iter(options)).split("_")[0]):
            RoceConfig(**options)


def test_random_is_only_what_is_given():
    ends = [Endpoint((), RoceConfig(), random.Random(3)) for _ in (0, 1)]
    a, b = (end.local_attributes(end.create_qp()) for end in ends)
    assert a == b
