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
from typing import NamedTuple

from hosts.mrc.icrc import prefix_crc
from hosts.mrc.paths import Path, PlanePaths
from hosts.mrc.wire import (
    ETHERTYPE_IPV6,
    INNER_OFFSET,
    IPV6_LEN,
    NEXT_IPV6,
    NEXT_UDP,
    UDP_OFFSET,
    join_ev,
    split_ev,
)

_PREFIX = struct.Struct(">6s6sH IHBB16s16s IHBB16s16s HHHH")
_INNER = struct.Struct(">IHBB16s16sHHHH")

ECT0 = 0b10
CE = 0b11

FLOW_KEY = slice(INNER_OFFSET, UDP_OFFSET + 8)
"""The part of a frame that identifies its flow to `FlowCache`."""


class FrameOptions(NamedTuple):
    """The options of an endpoint that shape every frame."""

    udp_port: int
    hop_limit: int
    ev_low_half_in_udp: bool


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """Return the IPv6 traffic class: data may be marked by switches, control packets say they may not."""
    return dscp << 2 | (ECT0 if ecn_capable else 0)


def prefix(
    plane: PlanePaths, path: Path, options: FrameOptions, tclass: int, udp_length: int
) -> tuple[bytes, int]:
    """Return the 102 bytes before the BTH and the value the ICRC starts with.

    `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    source, label = split_ev(path.ev, low_half_in_udp=options.ev_low_half_in_udp)
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
    """What an inner IPv6 and UDP header say, once checked."""

    crc: int
    frame_length: int
    """Length a whole frame with these headers has, bytes."""
    ev: int
    src: bytes
    dst: bytes


class FlowCache:
    """Checked inner headers by their bytes."""

    _LIMIT = 1 << 14

    def __init__(self, options: FrameOptions) -> None:
        self._options = options
        self.flows: dict[bytes, Flow] = {}

    def check(self, key: bytes) -> Flow | None:
        """Return the flow of 48 header bytes, or None when they are no IPv6 and UDP for our port."""
        first, length, following, _, src, dst, sport, dport, udp_length, _ = _INNER.unpack(key)
        if (
            first >> 28 != 6
            or following != NEXT_UDP
            or dport != self._options.udp_port
            or length != udp_length
        ):
            return None
        ev = join_ev(sport, first & 0xFFFF, low_half_in_udp=self._options.ev_low_half_in_udp)
        flow = Flow(prefix_crc(key), UDP_OFFSET + udp_length, ev, src, dst)
        if len(self.flows) >= self._LIMIT:
            self.flows.clear()
        self.flows[key] = flow
        return flow
