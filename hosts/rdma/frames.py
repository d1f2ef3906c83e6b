"""Frames around RDMA packets: Ethernet, an outer IPv6 header with a uSID container or none, IPv6, UDP.

Everything before the BTH is fixed for one path, traffic class and length, so senders build it once with
`build_prefix`, together with the value that the ICRC starts with, and `seal` joins it to a packet. The same
holds for arriving frames: `FlowCache` remembers by their bytes which headers it has already checked.

The UDP checksum is 0 [IBTA A17.3.1]: the ICRC covers everything that it would cover.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.headers import (
    BTH_LEN,
    BTH_OFFSET,
    ETH_LEN,
    ETHERTYPE_IPV6,
    ICRC_LEN,
    IPV6_LEN,
    NEXT_IPV6,
    NEXT_UDP,
    PLAIN_BTH_OFFSET,
    UDP_LEN,
)
from mrclab.hosts.rdma.icrc import crc32, prefix_crc
from mrclab.hosts.rdma.paths import PlanePaths

Frame = tuple[int, bytes]
"""NIC port, and a whole Ethernet frame for it."""
Outgoing = tuple[int, Any]
"""The same inside an endpoint, whose packets may be objects rather than bytes."""

ECT0: Final = 0b10
"""ECN bits of a packet that switches may mark."""
CE: Final = 0b11
"""ECN bits of a packet that a switch has marked: congestion experienced."""

FLOW_START: Final = ETH_LEN - 2
"""A frame's bytes from here up to the BTH identify its flow to `FlowCache`: all but the MAC addresses."""
NEXT_HEADER_OFFSET: Final = ETH_LEN + 6
MIN_LENGTH_AFTER_BTH: Final = BTH_LEN + ICRC_LEN
_INNER_LEN: Final = IPV6_LEN + UDP_LEN

_ETHERNET: Final = struct.Struct(">6s6sH")
_IPV6: Final = struct.Struct(">IHBB16s16s")
_UDP: Final = struct.Struct(">HHHH")
_INNER: Final = struct.Struct(">IHBB16s16sHHHH")


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """Return the IPv6 traffic class: data may be marked by switches, control packets say they may not."""
    return dscp << 2 | (ECT0 if ecn_capable else 0)


def build_prefix(
    plane: PlanePaths,
    outer_dst: bytes | None,
    *,
    tclass: int,
    flow_label: int,
    source: int,
    udp_port: int,
    hop_limit: int,
    udp_length: int,
) -> tuple[bytes, int]:
    """Return the bytes before the BTH and the value that the ICRC starts with.

    `outer_dst` is the uSID container; None for a frame without an outer header. `source` is the UDP source
    port. `udp_length` is the UDP header's own length field: 8, BTH, extension headers, payload, pad and ICRC.
    """
    first_word = 6 << 28 | tclass << 20 | flow_label
    inner = _INNER.pack(
        first_word, udp_length, NEXT_UDP, hop_limit, plane.src, plane.dst, source, udp_port, udp_length, 0
    )
    outer = b""
    if outer_dst is not None:
        length = udp_length + IPV6_LEN
        outer = _IPV6.pack(first_word, length, NEXT_IPV6, hop_limit, plane.src, outer_dst)
    return _ETHERNET.pack(plane.dst_mac, plane.src_mac, ETHERTYPE_IPV6) + outer + inner, prefix_crc(inner)


def seal(head: bytes, crc: int, middle: bytes) -> bytes:
    """Return a frame without payload: what `build_prefix` made, headers from the BTH on, and the ICRC."""
    return b"".join((head, middle, crc32(middle, crc).to_bytes(4, "little")))


def seal_payload(head: bytes, crc: int, middle: bytes, payload: bytes | memoryview) -> bytes:
    """Return a whole frame with a payload, which must be padded to a multiple of four bytes."""
    return b"".join((head, middle, payload, crc32(payload, crc32(middle, crc)).to_bytes(4, "little")))


class Flow:
    """The contents of the headers before the BTH, once checked."""

    __slots__ = (
        "bth",
        "ce",
        "crc",
        "dscp",
        "dst",
        "ev",
        "frame_length",
        "outer_dst",
        "route",
        "src",
        "taken_from",
        "trimmed",
    )

    def __init__(
        self,
        bth: int,
        crc: int,
        frame_length: int,
        ev: int,
        src: bytes,
        dst: bytes,
        tclass: int,
        trimmed_dscps: Collection[int],
    ) -> None:
        self.bth = bth
        """Where the BTH starts in the frame."""
        self.crc = crc
        """The value that the ICRC starts with."""
        self.frame_length = frame_length
        """Length that a whole frame with these headers has, bytes."""
        self.ev = ev
        self.src = src
        self.dst = dst
        self.ce = tclass & 3 == CE
        """Congestion experienced; marked on the outermost header, where switches can reach it."""
        self.dscp = tclass >> 2
        """Of the outermost header."""
        self.trimmed = self.dscp in trimmed_dscps
        """A switch cut the payload off."""
        self.outer_dst: bytes | None = None
        """uSID container that a packet leaves with, where packets are objects; None: no outer header."""
        self.route = -1
        """A simulated network may keep the number of the flow's route here."""
        self.taken_from: object = None
        """The peers of the queue pair that took the flow's last packet: the flow is from one of them."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FlowCache:
    """Checked headers by their bytes, so that a flow's packets are taken apart and judged once."""

    _LIMIT = 1 << 14

    def __init__(
        self, udp_ports: Collection[int], *, needs_outer: bool = False, trimmed_dscps: Collection[int] = ()
    ) -> None:
        """Accept frames to these UDP ports; with `needs_outer` only those with an outer IPv6 header."""
        self._udp_ports = tuple(udp_ports)
        self.needs_outer = needs_outer
        self._trimmed_dscps = tuple(trimmed_dscps)
        self.min_frame = (BTH_OFFSET if needs_outer else PLAIN_BTH_OFFSET) + MIN_LENGTH_AFTER_BTH
        """Length of the shortest frame with these headers, bytes."""
        self.flows: dict[bytes, Flow] = {}

    def check(self, key: bytes) -> Flow | None:
        """Return the flow of the bytes from `FLOW_START` to the BTH; None if they are of another protocol."""
        outermost = int.from_bytes(key[2:6], "big")
        has_outer = len(key) == BTH_OFFSET - FLOW_START
        inner = key[len(key) - _INNER_LEN :]
        first, _, following, _, src, dst, source, port, udp_length, _ = _INNER.unpack(inner)
        if (
            int.from_bytes(key[:2], "big") != ETHERTYPE_IPV6
            or outermost >> 28 != 6
            or first >> 28 != 6
            or following != NEXT_UDP
            or port not in self._udp_ports
            or (has_outer and key[NEXT_HEADER_OFFSET - FLOW_START] != NEXT_IPV6)
            or (self.needs_outer and not has_outer)
        ):
            return None
        bth = BTH_OFFSET if has_outer else PLAIN_BTH_OFFSET
        flow = Flow(
            bth,
            prefix_crc(inner),
            bth - UDP_LEN + udp_length,
            self.entropy(source, first & 0xFFFFF),
            src,
            dst,
            outermost >> 20 & 0xFF,
            self._trimmed_dscps,
        )
        if len(self.flows) >= self._LIMIT:
            self.flows.clear()
        self.flows[key] = flow
        return flow

    def entropy(self, source: int, flow_label: int) -> int:
        """Return the EV that a UDP source port and a flow label carry; 0 where the transport has none."""
        return 0
