"""RDMA packets on the wire, as MRC and RoCEv2 share them: headers, PSNs, ICRC and the frame around.

All integers are big endian. Both transports begin with the InfiniBand base transport header (BTH), which the
sender wraps in UDP, IPv6 and Ethernet; with SRv6 there is an outer IPv6 header (uSID container) in front of
the inner one.

A PSN counts data packets of one direction of one queue pair, whatever path each took [SPEC §7.4.4]. The wire
carries its low 24 bits. Inside the core PSNs are plain integers that never wrap, so ordinary comparison and
subtraction are right everywhere; only the edges (`& PSN_MASK`, `expand`) know about 24 bits.

Everything before the BTH is fixed for one path, traffic class and length, so senders build it once with
`build_prefix`, together with the value that the ICRC starts with, and `seal` joins it to a packet. The same
holds for arriving frames: `FlowCache` remembers by their bytes which headers it has already checked.

The UDP checksum is 0 [IBTA A17.3.1]: the ICRC covers everything that it would cover. The ICRC follows the
RoCEv2 rule [IBTA Annex A17.3.3]: CRC-32 (the Ethernet polynomial, which `crc32` computes) over eight bytes of
ones, the inner IPv6 header, the UDP header, the BTH and everything up to the ICRC itself. Fields a network
may rewrite count as all ones: traffic class, flow label and hop limit of IPv6, the UDP checksum, and the
reserved byte 4 of the BTH. The outer IPv6 header is not covered: switches rewrite its destination at every
hop. The result goes out least significant byte first.

Two properties of CRCs keep this to one pass over the payload and no copy:

* The part before the BTH is the same for all packets of one path and length, so its CRC is computed once
  (`prefix_crc`) and passed to `crc32` as the starting value.
* The BTH's reserved byte is sent as zero but counts as 0xFF. A CRC is linear, so that difference can be moved
  into the starting value: `RESERVED_FIX` is the change of the register that four byte steps turn into 0xFF.
  It is part of `prefix_crc`, and from there on the bytes count as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.paths import PlanePaths

Buffer = bytes | bytearray | memoryview

UDP_PORT: Final = 4791
"""RoCEv2's port, used by default; some sources of the MRC specification say 4971."""

ETH_LEN: Final = 14
IPV6_LEN: Final = 40
UDP_LEN: Final = 8
BTH_LEN: Final = 12
RETH_LEN: Final = 16
IMM_LEN: Final = 4
ICRC_LEN: Final = 4

INNER_OFFSET: Final = ETH_LEN + IPV6_LEN
"""Start of the inner IPv6 header in a frame with an outer one."""
UDP_OFFSET: Final = INNER_OFFSET + IPV6_LEN
BTH_OFFSET: Final = UDP_OFFSET + UDP_LEN
PLAIN_BTH_OFFSET: Final = BTH_OFFSET - IPV6_LEN
"""Start of the BTH in a frame without an outer IPv6 header."""

ETHERTYPE_IPV6: Final = 0x86DD
NEXT_IPV6: Final = 41
NEXT_UDP: Final = 17

BTH_ACK_REQUEST: Final = 0x80
"""Bit of the byte before the PSN: the sender wants an acknowledgement."""

BTH_STRUCT: Final = struct.Struct(">BBHII")
"""BTH: opcode, flags with pad count and version, P_Key, reserved byte with QPN, flags with PSN."""
RETH_STRUCT: Final = struct.Struct(">QII")
"""RETH: virtual address, rkey, DMA length."""
IMM_STRUCT: Final = struct.Struct(">I")
"""Immediate data; an AETH (syndrome and MSN) has the same shape."""


class WireError(ValueError):
    """Bytes that do not hold the header they should."""


def unpack(layout: struct.Struct, buffer: Buffer, offset: int) -> tuple[int, ...]:
    """Return the fields of the header at `offset`. Raise WireError if the bytes end too early."""
    if offset < 0 or len(buffer) - offset < layout.size:
        raise WireError(f"{len(buffer) - offset} bytes where {layout.size} are needed")
    return layout.unpack_from(buffer, offset)


PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
PSN_HALF: Final = 1 << (PSN_BITS - 1)


def expand(wire: int, near: int) -> int:
    """Return the unbounded PSN whose low 24 bits are `wire` and which lies closest to `near`."""
    return near + ((wire - near + PSN_HALF) & PSN_MASK) - PSN_HALF


def trailing_ones(bits: int) -> int:
    """Return how many of the lowest bits of `bits` are set without a gap."""
    return ((bits + 1) & ~bits).bit_length() - 1


try:
    # The same function, ten times as fast: what zlib needs for 4 KiB is a quarter of all a packet costs here.
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

_POLYNOMIAL: Final = 0xEDB88320
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any message followed by its own CRC, least significant byte first."""


def _undo_zero_bytes(register: int, count: int) -> int:
    """Return the CRC register that `count` zero bytes turn into `register`."""
    for _ in range(8 * count):
        # The polynomial has its top bit set, so the top bit shows whether the step forward subtracted it.
        if register & 0x80000000:
            register = (((register ^ _POLYNOMIAL) << 1) | 1) & 0xFFFFFFFF
        else:
            register = (register << 1) & 0xFFFFFFFF
    return register


RESERVED_FIX: Final = _undo_zero_bytes(0xFF, 4)


def prefix_crc(ipv6_udp: bytes) -> int:
    """Return the starting value for the BTH onwards, given the inner IPv6 and UDP headers (48 bytes)."""
    masked = bytearray(b"\xff" * 8 + ipv6_udp[:48])
    masked[8] |= 0x0F
    masked[9:12] = b"\xff\xff\xff"
    masked[15] = 0xFF
    masked[54:56] = b"\xff\xff"
    return crc32(masked) ^ RESERVED_FIX


def packet_icrc(ipv6_udp: bytes, rest: bytes) -> bytes:
    """Return the four ICRC bytes of a packet: `rest` is all from the BTH up to, not including, the ICRC."""
    masked = bytearray(rest)
    masked[4] = 0
    return crc32(masked, prefix_crc(ipv6_udp)).to_bytes(4, "little")


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
