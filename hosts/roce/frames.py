"""Frames around RoCEv2 packets: Ethernet | [outer IPv6 with a uSID container] | IPv6 | UDP.

The UDP checksum is 0 [IBTA A17.3.1]; the ICRC covers what it would.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from hosts.rdma.frames import CE
from hosts.rdma.headers import (
    BTH_LEN,
    ETH_LEN,
    ETHERTYPE_IPV6,
    ICRC_LEN,
    IPV6_LEN,
    NEXT_IPV6,
    NEXT_UDP,
    UDP_LEN,
)
from hosts.rdma.icrc import prefix_crc
from hosts.rdma.paths import PlanePaths

_ETHERNET = struct.Struct(">6s6sH")
_IPV6 = struct.Struct(">IHBB16s16s")
_UDP = struct.Struct(">HHHH")
_NEXT_HEADER = ETH_LEN + 6
_TYPE = ETH_LEN - 2
_HEADERS = IPV6_LEN + UDP_LEN
PLAIN_BTH = ETH_LEN + _HEADERS
SRV6_BTH = PLAIN_BTH + IPV6_LEN
MIN_FRAME = PLAIN_BTH + BTH_LEN + ICRC_LEN


class Route(NamedTuple):
    """What all frames of a queue pair have in common."""

    plane: PlanePaths
    outer_dst: bytes | None
    """uSID container; None for frames without an outer header."""
    label: int
    source: int
    udp_port: int
    hop_limit: int


def prefix(route: Route, tclass: int, udp_length: int) -> tuple[bytes, int]:
    """Return the bytes before the BTH and the value the ICRC starts with.

    `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    plane, hops = route.plane, route.hop_limit
    first_word = 6 << 28 | tclass << 20 | route.label
    inner = _IPV6.pack(first_word, udp_length, NEXT_UDP, hops, plane.src, plane.dst) + _UDP.pack(
        route.source, route.udp_port, udp_length, 0
    )
    outer = b""
    if route.outer_dst is not None:
        length = udp_length + IPV6_LEN
        outer = _IPV6.pack(first_word, length, NEXT_IPV6, hops, plane.src, route.outer_dst)
    return _ETHERNET.pack(plane.dst_mac, plane.src_mac, ETHERTYPE_IPV6) + outer + inner, prefix_crc(inner)


class Flow(NamedTuple):
    """What the headers before the BTH say, once checked."""

    bth: int
    """Where the BTH starts in the frame."""
    crc: int
    """What the ICRC starts with."""
    frame_length: int
    """Length that a whole frame with these headers has, bytes."""
    src: bytes
    dst: bytes
    ce: bool
    """Congestion experienced, on the outermost header: where switches can reach it."""


class FlowCache:
    """Checked headers by their bytes, so that a flow's packets are taken apart and judged once."""

    _LIMIT = 1 << 14

    def __init__(self, udp_port: int) -> None:
        self._udp_port = udp_port
        self._flows: dict[bytes, Flow] = {}

    def flow(self, frame: bytes | bytearray | memoryview) -> Flow | None:
        """Return the flow of a frame of MIN_FRAME bytes or more; None if it is no RoCEv2 packet for us."""
        bth = SRV6_BTH if frame[_NEXT_HEADER] == NEXT_IPV6 else PLAIN_BTH
        if len(frame) < bth + BTH_LEN + ICRC_LEN:
            return None
        key = bytes(frame[_TYPE:bth])
        found = self._flows.get(key)
        if found is None:
            found = self._check(key, bth)
            if found is not None:
                if len(self._flows) >= self._LIMIT:
                    self._flows.clear()
                self._flows[key] = found
        return found

    def _check(self, key: bytes, bth: int) -> Flow | None:
        outermost = int.from_bytes(key[2:6], "big")
        inner = key[-_HEADERS:]
        first, _, following, _, src, dst = _IPV6.unpack_from(inner)
        _, port, udp_length, _ = _UDP.unpack_from(inner, IPV6_LEN)
        if (
            int.from_bytes(key[:2], "big") != ETHERTYPE_IPV6
            or outermost >> 28 != 6
            or first >> 28 != 6
            or following != NEXT_UDP
            or port != self._udp_port
            or udp_length < UDP_LEN + BTH_LEN + ICRC_LEN
        ):
            return None
        ce = outermost >> 20 & 3 == CE
        return Flow(bth, prefix_crc(inner), bth - UDP_LEN + udp_length, src, dst, ce)
