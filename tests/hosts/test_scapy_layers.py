"""The scapy layers and our encoder give the same bytes, and each reads the other's bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet as ScapyPacket
from scapy.packet import Raw

from mrclab.hosts.mrc import wire
from mrclab.hosts.scapy_layers import (
    AETH,
    BTH,
    CC_STATE,
    EETH,
    ERTH,
    IMMDT,
    METH,
    NETH,
    PETH,
    RETH,
    SETH,
    TSETH,
    ev_of,
    underlay,
)
from tests.support.mrc_packets import DSCP, EV, Packet, every_packet, frame_of

BITS = {n: st.integers(0, (1 << n) - 1) for n in (1, 2, 4, 7, 8, 15, 16, 24, 32, 64)}
SIGNED16 = st.integers(-(1 << 15), (1 << 15) - 1)
BELOW = {"src_mac": "02:00:00:00:00:03", "dst_mac": "02:10:00:03:00:01"}
ADDRESSES = {
    "src": "fd00:6d72:63:3::1",
    "dst": "fd00:6d72:63:3::7",
    "container": "fcbb:bb00:3400:3803:3403:3c06::",
}


def below(ev: int = EV, **options: Any) -> ScapyPacket:
    return underlay(ev=ev, **ADDRESSES, **BELOW, **options)


@pytest.mark.parametrize("packet", every_packet(), ids=lambda p: p.name)
def test_frames_come_back_byte_for_byte(packet: Packet) -> None:
    parsed = Ether(packet.frame)
    assert parsed[BTH].opcode == packet.fields["mrc.bth.opcode"]
    assert parsed[BTH].psn == packet.fields["mrc.bth.psn"]
    assert ev_of(parsed) == EV
    assert bytes(parsed) == packet.frame
    if not packet.fields["mrc.trimmed"]:
        assert parsed[BTH].data() == packet.payload
        for name in ("icrc", "pad_count"):
            setattr(parsed[BTH], name, None)
        if packet.payload:
            parsed[Raw].load = packet.payload
        assert bytes(parsed) == packet.frame, "ICRC and pad are not what they should be"


def test_a_trimmed_packet_has_headers_and_nothing_else() -> None:
    (trimmed,) = (p for p in every_packet() if p.name == "WRITE_ONLY_IMM, 100 B, trimmed")
    parsed = Ether(trimmed.frame)
    assert parsed[IMMDT].imm == 0xCAFEF00D
    assert not parsed.haslayer(Raw)
    assert parsed[BTH].icrc is None


@pytest.mark.slow
@given(
    opcode=st.sampled_from([o for o in wire.Opcode if o <= wire.Opcode.WRITE_ONLY_IMM]),
    ev=BITS[32],
    numbers=st.tuples(BITS[24], BITS[24], BITS[16], BITS[16], BITS[16], BITS[64], BITS[32], BITS[32]),
    flags=st.tuples(*[st.booleans()] * 4),
    payload=st.binary(max_size=70),
)
def test_data_is_built_as_we_build_it(
    opcode: wire.Opcode,
    ev: int,
    numbers: tuple[int, ...],
    flags: tuple[bool, ...],
    payload: bytes,
) -> None:
    qpn, psn, rqmsn, msn, stamp, va, rkey, length = numbers
    ack, rtx, ts, solicited = flags
    pad = -len(payload) & 3
    immediate = opcode in (wire.Opcode.WRITE_LAST_IMM, wire.Opcode.WRITE_ONLY_IMM)
    middle = wire.Bth(opcode, qpn, psn, ack, rtx, ts, pad, solicited=solicited).pack()
    middle += wire.Meth(rqmsn, msn).pack() + (wire.Tseth(stamp).pack() if ts else b"")
    middle += wire.Reth(va, rkey, length).pack() + (b"\x01\x02\x03\x04" if immediate else b"")
    ours = frame_of(middle + payload + bytes(pad), dscp=DSCP.trimmable, ecn_capable=True, ev=ev)

    packet = below(ev) / BTH(
        opcode=int(opcode), dest_qpn=qpn, psn=psn, a=int(ack), rtx=int(rtx), ts=int(ts), se=int(solicited)
    )
    packet /= METH(rqmsn=rqmsn, msn=msn)
    packet = packet / TSETH(tx_timestamp=stamp) if ts else packet
    packet /= RETH(va=va, rkey=rkey, dma_length=length)
    packet = packet / IMMDT(imm=0x01020304) if immediate else packet
    packet = packet / Raw(payload) if payload else packet
    assert bytes(packet) == ours

    parsed = Ether(ours)
    assert (parsed[METH].msn, parsed[RETH].va, parsed[RETH].rkey) == (msn, va, rkey)
    assert parsed.haslayer(TSETH) == ts
    assert parsed.haslayer(IMMDT) == immediate
    assert parsed[BTH].data() == payload
    assert ev_of(parsed) == ev


def check_control(opcode: wire.Opcode, extension: bytes, layers: ScapyPacket) -> ScapyPacket:
    """Build a control packet with scapy and our encoder. Parse it and return its first extension header."""
    middle = wire.Bth(opcode, 0x123456, 0xABCDEF).pack() + extension
    ours = frame_of(middle, dscp=DSCP.control)
    bth = BTH(opcode=int(opcode), dest_qpn=0x123456, psn=0xABCDEF)
    assert bytes(below(dscp=DSCP.control, ecn_capable=False) / bth / layers) == ours
    parsed = Ether(ours)[type(layers)]
    for field in layers.fields:
        assert getattr(parsed, field) == getattr(layers, field), field
    return parsed


@pytest.mark.slow
@given(
    cack=BITS[24],
    entropy=BITS[32],
    ack=SIGNED16,
    mark=st.integers(0, 2),
    pr=st.booleans(),
    base=SIGNED16,
    bitmap=BITS[64],
    ids=st.tuples(BITS[16], BITS[16]),
    cc=st.tuples(BITS[4], BITS[4], BITS[8]),
    state=st.tuples(BITS[16], BITS[15], st.booleans(), BITS[7], BITS[24]),
)
def test_sack(
    cack: int,
    entropy: int,
    ack: int,
    mark: int,
    pr: bool,
    base: int,
    bitmap: int,
    ids: tuple[int, int],
    cc: tuple[int, int, int],
    state: tuple[int, int, bool, int, int],
) -> None:
    stamp, ooo, restore, penalty, received = state
    sack = wire.Sack(cack, entropy, ack, mark, pr, base, bitmap, *ids, *cc, stamp, ooo, restore, *state[3:])
    first = {"probe_id": ack & 0xFFFF} if pr else {"ack_psn_offset": ack}
    seth = SETH(
        cack_psn=cack,
        entropy=entropy,
        m=mark,
        pr=int(pr),
        sack_offset=base,
        sack_bitmap=bitmap,
        spdcid=ids[0],
        dpdcid=ids[1],
        cc_type=cc[0],
        cc_flags=cc[1],
        mpr=cc[2],
        **first,
    )
    cc_state = CC_STATE(
        tx_timestamp=stamp,
        ooo_count=ooo,
        restore_cwnd=int(restore),
        rcv_cwnd_pen=penalty,
        rcvd_bytes=received,
    )
    parsed = check_control(wire.Opcode.SACK, sack.pack(), seth / cc_state)
    assert (parsed[CC_STATE].ooo_count, parsed[CC_STATE].rcvd_bytes) == (ooo, received)


@pytest.mark.slow
@given(
    reason=st.sampled_from(wire.NackReason),
    entropy=BITS[32],
    psn=BITS[24],
    ids=st.tuples(BITS[16], BITS[16]),
    flags=BITS[4],
    stamp=BITS[16],
    vendor=BITS[8],
)
def test_nack(
    reason: wire.NackReason,
    entropy: int,
    psn: int,
    ids: tuple[int, int],
    flags: int,
    stamp: int,
    vendor: int,
) -> None:
    ours = wire.Nack(reason, entropy, psn, *ids, flags, stamp, vendor)
    layer = NETH(
        reason=int(reason),
        entropy=entropy,
        nack_psn=psn,
        spdcid=ids[0],
        dpdcid=ids[1],
        cc_flags=flags,
        tx_timestamp=stamp,
        vendor=vendor,
    )
    check_control(wire.Opcode.NACK, ours.pack(), layer)


@given(probe=BITS[16], ids=st.tuples(BITS[16], BITS[16]), stamp=BITS[16], vendor=BITS[8])
def test_probe(probe: int, ids: tuple[int, int], stamp: int, vendor: int) -> None:
    layer = PETH(probe_id=probe, spdcid=ids[0], dpdcid=ids[1], tx_timestamp=stamp, vendor=vendor)
    check_control(wire.Opcode.PROBE_REQUEST, wire.Probe(probe, *ids, stamp, vendor).pack(), layer)


@pytest.mark.slow
@given(
    op=BITS[2],
    mask=BITS[32],
    stamp=BITS[16],
    vendor=BITS[8],
    msn=BITS[24],
)
def test_endpoint_operations_and_acknowledge(op: int, mask: int, stamp: int, vendor: int, msn: int) -> None:
    request = wire.EndpointRequest(op, mask, stamp, vendor).pack()
    layer = ERTH(op=op, port_status_mask=mask, tx_timestamp=stamp, vendor=vendor)
    check_control(wire.Opcode.ENDPOINT_REQUEST, request, layer)
    response = wire.EndpointResponse(op, stamp).pack()
    layer = EETH(op=op, tx_timestamp=stamp)
    check_control(wire.Opcode.ENDPOINT_RESPONSE, response, layer)
    check_control(wire.Opcode.ACKNOWLEDGE, wire.Aeth(msn).pack(), AETH(msn=msn))


@pytest.mark.parametrize("port", [4791, 4971])
def test_both_udp_ports_lead_to_the_bth(port: int) -> None:
    frame = bytes(below(udp_port=port) / BTH(opcode="ACKNOWLEDGE") / AETH(msn=9))
    assert Ether(frame)[AETH].msn == 9


def test_without_ipv6_below_there_is_no_icrc_to_compute() -> None:
    assert bytes(BTH(opcode="ACKNOWLEDGE") / AETH())[-4:] == bytes(4)
    ip = IPv6(src="fd00::1", dst="fd00::2") / UDP(sport=5, dport=4791) / BTH(opcode="ACKNOWLEDGE") / AETH()
    assert bytes(ip)[-4:] != bytes(4)
