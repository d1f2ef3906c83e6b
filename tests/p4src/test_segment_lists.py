"""Segment lists of RFC 8986 and RFC 9800: the program is compared with a copy of the RFCs' pseudocode.

The interpreter and the compiled program process the same frames, so both are tested.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mrclab.switches.p4_model import Prefix, Rule
from tests.support.switch_bench import Bench, bench_of
from tests.support.switch_kit import BLOCK, JSON, ipv6_packet, list_frame, sid, srh

pytestmark = pytest.mark.parallel

CONTROL = "MrcIngress.micro_segment"
LIST_ENDED, SRH_UNREAD, SRH_WRONG, HOP_LIMIT, NOT_OURS, NO_ROUTE = 9, 10, 11, 2, 3, 4
UN, UN_FLAVORED, END, END_X = 1, 0x10, 0xE0, 0xD0  # the two low bits of a SID are its flavours
BLOCK_BITS = BLOCK << 96
HOST = 0xFD00 << 112 | 5  # the destination of unpacked frames
NEIGHBOURS = {sid(2): (48, 2), sid(3): (48, 3), HOST: (128, 2)}
ADJACENT = 3


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    for made in bench_of(JSON):
        add = made.add
        add(f"{CONTROL}.my_sid", Rule((Prefix(sid(UN), 48),), f"{CONTROL}.un"))
        for flavours in range(4):
            args = (flavours & 1, flavours >> 1)
            add(
                f"{CONTROL}.my_sid",
                Rule((Prefix(sid(UN_FLAVORED + flavours), 48),), f"{CONTROL}.un_flavored", args),
            )
            # SIDs of classic lists are whole addresses.
            add(f"{CONTROL}.my_sid", Rule((Prefix(sid(9, END + flavours), 128),), f"{CONTROL}.end", args))
            add(
                f"{CONTROL}.my_sid",
                Rule((Prefix(sid(9, END_X + flavours), 128),), f"{CONTROL}.end_x", (*args, ADJACENT, 10, 20)),
            )
        for prefix, (length, port) in NEIGHBOURS.items():
            add(f"{CONTROL}.next_hop", Rule((Prefix(prefix, length),), f"{CONTROL}.forward", (port, 10, 20)))
        yield made


@dataclass
class Expected:
    """The result of RFC 8986 for a packet: port and packet without Ethernet, or the reason for a drop."""

    port: int = 0
    packet: bytes = b""
    drop: int = 0


def route(packet: bytes, port: int = 0) -> Expected:
    """Check the hop limit, and forward by the destination (RFC 8986, section 4.1, S14 and S15)."""
    if packet[7] <= 1:
        return Expected(drop=HOP_LIMIT)
    destination = int.from_bytes(packet[24:40], "big")
    for prefix, (length, neighbour) in NEIGHBOURS.items():
        if destination >> 128 - length == prefix >> 128 - length:
            port = port or neighbour
    if not port:
        return Expected(drop=NO_ROUTE)
    return Expected(port, packet[:7] + bytes([packet[7] - 1]) + packet[8:])


def expect(packet: bytes) -> Expected:
    """Return the result of the whole switch, for packets whose routing headers have the right length."""
    if packet[7] <= 1:
        return Expected(drop=HOP_LIMIT)
    destination = int.from_bytes(packet[24:40], "big")
    active = destination >> 80 & 0xFFFF
    port, psp, usd = 0, False, False
    if destination >> 96 != BLOCK:
        return Expected(drop=NOT_OURS)
    if active == UN or active & ~3 == UN_FLAVORED:
        rest = destination & (1 << 80) - 1
        if rest:
            moved = BLOCK_BITS | rest << 16
            return route(packet[:24] + moved.to_bytes(16, "big") + packet[40:])
        if active != UN:
            psp, usd = bool(active & 1), bool(active & 2)
    elif active == 9:
        function = destination >> 64 & 0xFFFF
        if destination & (1 << 64) - 1 or function & ~3 not in (END, END_X):
            return Expected(drop=NOT_OURS)
        psp, usd = bool(function & 1), bool(function & 2)
        port = ADJACENT if function & ~3 == END_X else 0
    else:
        return Expected(drop=NOT_OURS)
    return end(packet, psp, usd, port)


def end(packet: bytes, psp: bool, usd: bool, port: int) -> Expected:
    """Process a packet by the behaviour End (RFC 8986, section 4.1), with the flavours of section 4.16."""
    header, carried, next_hdr = b"", packet[40:], packet[6]
    if next_hdr == 43:
        size = 8 + 8 * packet[41]
        header, carried, next_hdr = packet[40 : 40 + size], packet[40 + size :], packet[40]
        if header[2] != 4 or header[1] > 17 or len(header) < size:
            return Expected(drop=SRH_UNREAD)
    if not header or header[3] == 0:
        if not usd or next_hdr != 41 or len(carried) < 40:
            return Expected(drop=LIST_ENDED)
        return route(inherit_mark(packet, carried), port)
    left, last = header[3], header[4]
    if last > header[1] // 2 - 1 or left > last + 1:
        return Expected(drop=SRH_WRONG)
    left -= 1
    out = bytearray(packet)
    out[43] = left
    out[24:40] = header[8 + 16 * left : 24 + 16 * left]
    if psp and left == 0:
        out[6] = header[0]
        out[4:6] = struct.pack("!H", struct.unpack_from("!H", packet, 4)[0] - len(header))
        del out[40 : 40 + len(header)]
    return route(bytes(out), port)


def inherit_mark(outer: bytes, inner: bytes) -> bytes:
    if outer[1] >> 4 & 3 == 3 and inner[1] >> 4 & 3:
        return inner[:1] + bytes([inner[1] | 0x30]) + inner[2:]
    return inner


DESTINATIONS = st.one_of(
    st.sampled_from([UN, *range(UN_FLAVORED, UN_FLAVORED + 4)]).map(sid),
    st.integers(0, 3).map(lambda f: sid(9, END + f)),
    st.integers(0, 3).map(lambda f: sid(9, END_X + f)),
    st.sampled_from([sid(UN, 2), sid(UN_FLAVORED + 3, 3), sid(7), sid(9, END, 1), HOST, sid(UN, 0, 2)]),
)
SEGMENTS = st.lists(st.sampled_from([sid(2), sid(3, 4), sid(77), HOST, sid(2) | 0xABCDEF]), max_size=10)


@pytest.mark.slow
@pytest.mark.root
@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    destination=DESTINATIONS,
    segments=SEGMENTS,
    left=st.integers(0, 10) | st.just(255),
    last=st.none() | st.integers(0, 10) | st.just(255),
    tlvs=st.integers(0, 5).map(lambda n: b"\4\6" + bytes(6) + bytes(8 * n - 8) if n else b""),
    listed=st.booleans() | st.just(True),
    kind=st.sampled_from([4, 4, 4, 4, 3]),
    carries=st.sampled_from([41, 41, 17, 59]),
    ecn=st.integers(0, 3),
    inner_ecn=st.integers(0, 3),
    hops=st.sampled_from([0, 1, 2, 64, 255]) | st.just(64),
    inner_hops=st.sampled_from([0, 1, 2, 64]) | st.just(64),
    inner_dst=st.sampled_from([HOST, HOST, sid(3), 99]),
    payload=st.sampled_from([0, 1, 100, 1300]),
    cut=st.just(0) | st.integers(1, 400),
)
def test_segment_lists_go_by_the_book(
    bench: Bench,
    destination: int,
    segments: list[int],
    left: int,
    last: int | None,
    tlvs: bytes,
    listed: bool,
    kind: int,
    carries: int,
    ecn: int,
    inner_ecn: int,
    hops: int,
    inner_hops: int,
    inner_dst: int,
    payload: int,
    cut: int,
) -> None:
    carried = bytes(i & 0xFF for i in range(payload))
    if carries == 41:
        carried = ipv6_packet(inner_dst, carried, ecn=inner_ecn, hop_limit=inner_hops)
    header = bytearray(srh(segments, left, carries, tlvs, last)) if listed else b""
    if header:
        header[2] = kind
    frame = list_frame(
        destination, bytes(header), carried, 43 if listed else carries, ecn=ecn, hop_limit=hops
    )
    frame = frame[: max(len(frame) - cut, 60)] if cut else frame
    want = expect(frame[14:])
    before = drops(bench, want.drop)
    got = bench.compare(frame)
    if want.drop:
        assert got == []
        assert drops(bench, want.drop) == before + 1
    else:
        ((port, out),) = got
        assert port == want.port
        assert out[14:].hex() == want.packet.hex()


def drops(bench: Bench, reason: int) -> int:
    count = bench.model.counters.get(("MrcIngress.drops", reason))
    return count.packets if count else 0
