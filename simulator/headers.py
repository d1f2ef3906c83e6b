"""Frames as switches see them: the fields that decide, and the frame that comes out.

A frame is parsed when it enters the network and built when it leaves. In between only the fields that
switches change are kept, in `mrclab.simulator.port.Packet`. The layout is that of `p4src/headers.p4`:

    Ethernet 14 | IPv6 40 | UDP 8 | BTH ...
    Ethernet 14 | IPv6 40 | IPv6 40 | UDP 8 | BTH ...
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mrclab.hosts.rdma.headers import BTH_OFFSET, NEXT_IPV6, NEXT_UDP, PLAIN_BTH_OFFSET
from mrclab.p4src.contract import (
    INNER_IPV6_BYTES,
    OUTER_BYTES,
    SWITCH_MAP,
    TIMESTAMP_BYTES,
    TRANSPORT_BYTES,
)
from mrclab.simulator.port import CONTROL, CUT, DATA, Hop, Packet

NEXT_HEADER: Final = 20
HOP_LIMIT: Final = 21
DST: Final = 38
OUTER_END: Final = 54
FLOW_LABEL: Final = slice(15, 18)
_TIMESTAMP_BIT: Final = 0x10
_FLAGS: Final = 8
_PSN: Final = 9
_CE: Final = 0x30
_PRIORITIES: Final = {"data": DATA, "trimmable": DATA, "high": CUT, "control": CONTROL}


class ClassMap:
    """The traffic class of each DSCP, as a fabric's switches have it."""

    def __init__(self, differing: Mapping[int, str] | None = None) -> None:
        """Take the usual map (mrclab.p4src.contract.SWITCH_MAP) with what differs of it."""
        classes = {**SWITCH_MAP, **(differing or {})}
        self.priority = [_PRIORITIES[classes.get(dscp, "data")] for dscp in range(64)]
        self.trimmable = [classes.get(dscp, "data") == "trimmable" for dscp in range(64)]


def destination(frame: bytes) -> bytes:
    """Return the outer destination, by which switches forward."""
    return frame[DST:OUTER_END]


def packet_of(frame: bytes, hop: Hop, classes: ClassMap) -> Packet:
    """Return the packet of a frame that enters the network; `hop` is what its sender does with it."""
    dscp = (frame[14] & 0xF) << 2 | frame[15] >> 6
    trim_bytes = 0
    if classes.trimmable[dscp]:
        trim_bytes = trimmed_bytes(frame)
        if trim_bytes >= len(frame):
            trim_bytes = 0
    return Packet(frame, len(frame), hop, classes.priority[dscp], trim_bytes, frame[15] & _CE != 0)


def trimmed_bytes(frame: bytes) -> int:
    """Return how much of a frame trimming would leave; 0 if it is no RDMA packet."""
    if frame[NEXT_HEADER] == NEXT_IPV6:
        if frame[NEXT_HEADER + INNER_IPV6_BYTES] != NEXT_UDP or len(frame) <= BTH_OFFSET + _FLAGS:
            return 0
        kept = OUTER_BYTES + INNER_IPV6_BYTES + TRANSPORT_BYTES
        flags = frame[BTH_OFFSET + _FLAGS]
    elif frame[NEXT_HEADER] == NEXT_UDP and len(frame) > PLAIN_BTH_OFFSET + _FLAGS:
        kept = OUTER_BYTES + TRANSPORT_BYTES
        flags = frame[PLAIN_BTH_OFFSET + _FLAGS]
    else:
        return 0
    return kept + TIMESTAMP_BYTES if flags & _TIMESTAMP_BIT else kept


def frame_of(packet: Packet) -> bytes:
    """Return the frame as it comes out of the network."""
    frame, hop = packet.frame, packet.hop
    first = frame[14:16]
    if packet.marked:
        first = bytes((first[0], first[1] | _CE))
    limit = bytes((hop.hop_limit,))
    if packet.cut_dscp < 0 and packet.corrupt < 0:
        return b"".join(
            (
                hop.dst_mac,
                hop.src_mac,
                frame[12:14],
                first,
                frame[16:HOP_LIMIT],
                limit,
                frame[22:DST],
                hop.dst,
                frame[OUTER_END:],
            )
        )
    changed = bytearray(frame[: packet.size_bytes])
    changed[0:12] = hop.dst_mac + hop.src_mac
    changed[14:16] = first
    changed[HOP_LIMIT] = hop.hop_limit
    changed[DST:OUTER_END] = hop.dst
    if packet.cut_dscp >= 0:
        _shorten(changed, packet.cut_dscp)
    if packet.corrupt >= 0:
        bth = BTH_OFFSET if changed[NEXT_HEADER] == NEXT_IPV6 else PLAIN_BTH_OFFSET
        changed[bth + _PSN + 2 - (packet.corrupt >> 3)] ^= 1 << (packet.corrupt & 7)
    return bytes(changed)


def _shorten(frame: bytearray, dscp: int) -> None:
    """Let the headers of a frame say that it was trimmed: the DSCP, and all lengths."""
    frame[14] = frame[14] & 0xF0 | dscp >> 2
    frame[15] = frame[15] & 0x3F | (dscp & 3) << 6
    left = len(frame) - OUTER_BYTES
    frame[18:20] = left.to_bytes(2, "big")
    udp = OUTER_END
    if frame[NEXT_HEADER] == NEXT_IPV6:
        left -= INNER_IPV6_BYTES
        frame[OUTER_END + 4 : OUTER_END + 6] = left.to_bytes(2, "big")
        udp += INNER_IPV6_BYTES
    frame[udp + 4 : udp + 6] = left.to_bytes(2, "big")


def ev_of(frame: bytes) -> int:
    """Return the EV of a frame without a segment list, as `p4src/ecmp.p4` reads it: 16 bits of the flow label
    and the UDP source port."""
    udp = OUTER_END
    protocol = frame[NEXT_HEADER]
    if protocol == NEXT_IPV6:
        protocol = frame[NEXT_HEADER + INNER_IPV6_BYTES]
        udp += INNER_IPV6_BYTES
    port = frame[udp] << 8 | frame[udp + 1] if protocol == NEXT_UDP else 0
    return frame[16] << 24 | frame[17] << 16 | port


def hash_input(frame: bytes, dst: bytes) -> bytes:
    """Return what ECMP's hash is over: addresses, flow label, protocol and ports, as in `p4src/ecmp.p4`.

    The fields are packed without gaps, and zero bits fill the last byte.
    """
    protocol, sport, dport = frame[NEXT_HEADER], 0, 0
    udp = OUTER_END
    if protocol == NEXT_IPV6:
        protocol = frame[NEXT_HEADER + INNER_IPV6_BYTES]
        udp += INNER_IPV6_BYTES
    if protocol == NEXT_UDP:
        sport = frame[udp] << 8 | frame[udp + 1]
        dport = frame[udp + 2] << 8 | frame[udp + 3]
    label = (frame[15] & 0xF) << 16 | frame[16] << 8 | frame[17]
    rest = (label << 40 | protocol << 32 | sport << 16 | dport) << 4
    return frame[22:DST] + dst + rest.to_bytes(8, "big")
