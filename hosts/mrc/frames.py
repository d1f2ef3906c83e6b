"""Frames around MRC packets: Ethernet, outer IPv6 (uSID container), inner IPv6, UDP [P1 §2.2, Fig 2-3].

Everything before the BTH is fixed for one path, traffic class and length, so `prefix` builds it once,
together with the CRC it starts the ICRC with, and a packet costs one dictionary look-up. The same holds for
arriving frames: `FlowCache` remembers by their 48 bytes which inner IPv6 and UDP headers it has already
checked.

The UDP checksum is 0, as RoCEv2 sends it: the ICRC covers all it would cover. Both flow labels carry the EV's
half.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from hosts.mrc.icrc import prefix_crc
from hosts.mrc.paths import Path, PlanePaths
from hosts.mrc.wire import (
    ETH_LEN,
    ETHERTYPE_IPV6,
    INNER_OFFSET,
    IPV6_LEN,
    NEXT_IPV6,
    NEXT_UDP,
    UDP_OFFSET,
    join_ev,
    split_ev,
)

_PREFIX: Final = struct.Struct(">6s6sH IHBB16s16s IHBB16s16s HHHH")
_INNER: Final = struct.Struct(">IHBB16s16sHHHH")

ECT0: Final = 0b10
CE: Final = 0b11

_OUTER: Final = struct.Struct(">HIHB")
FLOW_START: Final = ETH_LEN - 2
"""A frame's bytes from here up to the BTH identify its flow to `FlowCache`: all but the MAC addresses."""


class FrameOptions(NamedTuple):
    """The options of an endpoint that shape every frame."""

    udp_port: int
    hop_limit: int
    ev_low_half_in_udp: bool
    ev_in_flow_label: bool = True


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """Return the IPv6 traffic class: data may be marked by switches, control packets say they may not."""
    return dscp << 2 | (ECT0 if ecn_capable else 0)


def prefix(
    plane: PlanePaths, path: Path, options: FrameOptions, tclass: int, udp_length: int
) -> tuple[bytes, int]:
    """Return the 102 bytes before the BTH and the value the ICRC starts with.

    `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    if options.ev_in_flow_label:
        source, label = split_ev(path.ev, low_half_in_udp=options.ev_low_half_in_udp)
    else:
        source, label = path.ev, 0
    first_word = 6 << 28 | tclass << 20 | label
    head = _PREFIX.pack(
        plane.dst_mac,
        plane.src_mac,
        ETHERTYPE_IPV6,
        first_word,
        udp_length + IPV6_LEN,
        NEXT_IPV6,
        options.hop_limit,
        plane.src,
        path.outer_dst,
        first_word,
        udp_length,
        NEXT_UDP,
        options.hop_limit,
        plane.src,
        plane.dst,
        source,
        options.udp_port,
        udp_length,
        0,
    )
    return head, prefix_crc(head[INNER_OFFSET:])


class Flow(NamedTuple):
    """What the headers before the BTH say, once checked."""

    crc: int
    """What the ICRC starts with."""
    frame_length: int
    """Length a whole frame with these headers has, bytes."""
    ev: int
    src: bytes
    dst: bytes
    ce: bool
    """Congestion experienced; marked where switches can reach it, on the outer header."""
    dscp: int
    """Of the outer header."""


class FlowCache:
    """Checked headers by their bytes, so that a path's packets are taken apart and judged once."""

    _LIMIT = 1 << 14

    def __init__(self, options: FrameOptions) -> None:
        self._options = options
        self.flows: dict[bytes, Flow] = {}

    def check(self, key: bytes) -> Flow | None:
        """Return the flow of the bytes from `FLOW_START` to the BTH; None if they are no MRC packet's."""
        ethertype, outer, _, outer_next = _OUTER.unpack_from(key)
        inner = key[INNER_OFFSET - FLOW_START :]
        first, _, following, _, src, dst, sport, dport, udp_length, _ = _INNER.unpack(inner)
        if (
            ethertype != ETHERTYPE_IPV6
            or outer >> 28 != 6
            or outer_next != NEXT_IPV6
            or first >> 28 != 6
            or following != NEXT_UDP
            or dport != self._options.udp_port
        ):
            return None
        ev = sport
        if self._options.ev_in_flow_label:
            ev = join_ev(sport, first & 0xFFFF, low_half_in_udp=self._options.ev_low_half_in_udp)
        tclass = outer >> 20 & 0xFF
        crc = prefix_crc(inner)
        flow = Flow(crc, UDP_OFFSET + udp_length, ev, src, dst, tclass & 3 == CE, tclass >> 2)
        if len(self.flows) >= self._LIMIT:
            self.flows.clear()
        self.flows[key] = flow
        return flow
