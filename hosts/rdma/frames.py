"""The packet format that MRC and RoCEv2 share: headers, PSNs, ICRC and the frame around them.

All integers are big endian. Both transports begin with the InfiniBand base transport header (BTH). Around the
packet are UDP, IPv6 and Ethernet. With SRv6 there is an outer IPv6 header (uSID container) before the inner
IPv6 header.

A PSN counts the data packets of one direction of one queue pair, on all paths together [SPEC §7.4.4]. Packets
carry its low 24 bits. Inside an endpoint, PSNs are integers that never wrap, so that they can be compared and
subtracted. `expand` and `& PSN_MASK` convert them where packets are read and written.

The headers before the BTH are fixed for one path, traffic class and length. So senders build these headers
and the start value of the ICRC once, with `build_prefix`. `seal` then adds the rest of a packet. For arriving
frames, `FlowCache` stores the headers that have been checked.

The UDP checksum is 0 [IBTA A17.3.1], because the ICRC covers the same bytes. The ICRC follows the RoCEv2 rule
[IBTA Annex A17.3.3]. It is a CRC-32 (Ethernet's polynomial, which `crc32` computes) over these bytes: eight
bytes of ones, then the inner IPv6 header, the UDP header, the BTH and all bytes before the ICRC. Fields that
a network may change count as all ones: traffic class, flow label and hop limit of IPv6, the UDP checksum, and
the reserved byte 4 of the BTH. The outer IPv6 header is not covered, because switches change its destination
at every hop. The ICRC is sent with the least significant byte first.

Two properties of CRCs allow one pass over the payload without a copy:

* The bytes before the BTH are the same for all packets of one path and length. So their CRC is computed once
  (`prefix_crc`) and is the start value of `crc32`.
* The BTH's reserved byte is sent as 0 but counts as 0xFF. Because a CRC is linear, the start value can
  include this difference. So the start value is XORed with `RESERVED_FIX`. After 4 more bytes, this change
  of the CRC register has become 0xFF. This has the same effect as a reserved byte of 0xFF.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from typing import Any, Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.paths import PlanePaths

Buffer = bytes | bytearray | memoryview

UDP_PORT: Final = 4791
"""RoCEv2's port, the default. Some sources of the MRC specification give 4971."""

ETH_LEN: Final = 14
IPV6_LEN: Final = 40
UDP_LEN: Final = 8
BTH_LEN: Final = 12
RETH_LEN: Final = 16
IMM_LEN: Final = 4
ICRC_LEN: Final = 4

INNER_OFFSET: Final = ETH_LEN + IPV6_LEN
"""Start of the inner IPv6 header in a frame that has an outer IPv6 header."""
UDP_OFFSET: Final = INNER_OFFSET + IPV6_LEN
BTH_OFFSET: Final = UDP_OFFSET + UDP_LEN
PLAIN_BTH_OFFSET: Final = BTH_OFFSET - IPV6_LEN
"""Start of the BTH in a frame without an outer IPv6 header."""

ETHERTYPE_IPV6: Final = 0x86DD
NEXT_IPV6: Final = 41
NEXT_UDP: Final = 17

BTH_ACK_REQUEST: Final = 0x80
"""Bit of the byte before the PSN: the sender requests an acknowledgement."""

BTH_STRUCT: Final = struct.Struct(">BBHII")
"""BTH: opcode, flags with pad count and version, P_Key, reserved byte with QPN, flags with PSN."""
RETH_STRUCT: Final = struct.Struct(">QII")
"""RETH: virtual address, rkey, DMA length."""
IMM_STRUCT: Final = struct.Struct(">I")
"""Immediate data; an AETH (syndrome and MSN) has the same shape."""


class WireError(ValueError):
    """The bytes do not contain the expected header."""


def unpack(layout: struct.Struct, buffer: Buffer, offset: int) -> tuple[int, ...]:
    """Return the fields of the header at `offset`. Raise WireError if the buffer is too short."""
    if offset < 0 or len(buffer) - offset < layout.size:
        raise WireError(f"{len(buffer) - offset} bytes where {layout.size} are needed")
    return layout.unpack_from(buffer, offset)


PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
PSN_HALF: Final = 1 << (PSN_BITS - 1)


def expand(wire: int, near: int) -> int:
    """Return the PSN without wrap-around whose low 24 bits are `wire` and which is nearest to `near`."""
    return near + ((wire - near + PSN_HALF) & PSN_MASK) - PSN_HALF


def trailing_ones(bits: int) -> int:
    """Return the number of consecutive ones at the low end of `bits`."""
    return ((bits + 1) & ~bits).bit_length() - 1


try:
    # zlib-ng is ten times as fast as zlib. With zlib, the CRC takes a quarter of the time for a packet.
    from zlib_ng.zlib_ng import crc32 as crc32
except ImportError:
    from zlib import crc32 as crc32

_POLYNOMIAL: Final = 0xEDB88320
RESIDUE: Final = 0x2144DF1C
"""CRC-32 of any message followed by its own CRC, least significant byte first."""


def _undo_zero_bytes(register: int, count: int) -> int:
    """Return the CRC register that becomes `register` after `count` zero bytes."""
    for _ in range(8 * count):
        # The loop undoes one CRC step after another. The polynomial's top bit is 1. So the register's top bit
        # is 1 exactly if the step applied the polynomial.
        if register & 0x80000000:
            register = (((register ^ _POLYNOMIAL) << 1) | 1) & 0xFFFFFFFF
        else:
            register = (register << 1) & 0xFFFFFFFF
    return register


RESERVED_FIX: Final = _undo_zero_bytes(0xFF, 4)


def prefix_crc(ipv6_udp: bytes) -> int:
    """Return the ICRC of the headers before the BTH. The ICRC of the frame continues from this value.

    `ipv6_udp` begins with the inner IPv6 and UDP headers (48 bytes).
    """
    masked = bytearray(b"\xff" * 8 + ipv6_udp[:48])
    masked[8] |= 0x0F
    masked[9:12] = b"\xff\xff\xff"
    masked[15] = 0xFF
    masked[54:56] = b"\xff\xff"
    return crc32(masked) ^ RESERVED_FIX


def packet_icrc(ipv6_udp: bytes, rest: bytes) -> bytes:
    """Return the four ICRC bytes of a packet; `rest` is the packet from the BTH up to the ICRC."""
    masked = bytearray(rest)
    masked[4] = 0
    return crc32(masked, prefix_crc(ipv6_udp)).to_bytes(4, "little")


Frame = tuple[int, bytes]
"""A NIC port, and a whole Ethernet frame to send there."""
Outgoing = tuple[int, Any]
"""A NIC port, and a packet to send there, which may be an object instead of bytes."""

ECT0: Final = 0b10
"""ECN bits of a packet that switches may mark."""
CE: Final = 0b11
"""ECN bits of a packet that a switch has marked: congestion experienced."""

FLOW_START: Final = ETH_LEN - 2
"""`FlowCache` identifies a flow by the bytes of a frame from here to the BTH: all but the MAC addresses."""
NEXT_HEADER_OFFSET: Final = ETH_LEN + 6
MIN_LENGTH_AFTER_BTH: Final = BTH_LEN + ICRC_LEN
_INNER_LEN: Final = IPV6_LEN + UDP_LEN

_ETHERNET: Final = struct.Struct(">6s6sH")
_IPV6: Final = struct.Struct(">IHBB16s16s")
_INNER: Final = struct.Struct(">IHBB16s16sHHHH")


def traffic_class(dscp: int, *, ecn_capable: bool) -> int:
    """Return the IPv6 traffic class. If `ecn_capable` is True, switches may mark the packet."""
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
    """Return two values: the bytes before the BTH, and the start value of the ICRC.

    `outer_dst` is the uSID container; None for a frame without an outer header. `source` is the UDP source
    port. `udp_length` is the UDP header's length field, from the UDP header up to and including the ICRC.
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
    """Return a frame without payload.

    `head` and `crc` are the results of `build_prefix`. `middle` starts with the BTH.
    """
    return b"".join((head, middle, crc32(middle, crc).to_bytes(4, "little")))


def seal_payload(head: bytes, crc: int, middle: bytes, payload: bytes | memoryview) -> bytes:
    """Return a frame with a payload, which must be padded to a multiple of four bytes."""
    return b"".join((head, middle, payload, crc32(payload, crc32(middle, crc)).to_bytes(4, "little")))


class Flow:
    """The checked contents of the headers before the BTH."""

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
        """Offset of the BTH in the frame."""
        self.crc = crc
        """The start value of the ICRC."""
        self.frame_length = frame_length
        """Length of a whole frame with these headers, bytes."""
        self.ev = ev
        self.src = src
        self.dst = dst
        self.ce = tclass & 3 == CE
        """Congestion experienced: the mark of a switch, in the outermost header."""
        self.dscp = tclass >> 2
        """DSCP of the outermost header."""
        self.trimmed = self.dscp in trimmed_dscps
        """True: a switch has trimmed the packet, so the packet has no payload."""
        self.outer_dst: bytes | None = None
        """If packets are objects: the uSID container of sent packets. None: no outer header."""
        self.route = -1
        """A simulated network may store the number of the flow's route here."""
        self.taken_from: object = None
        """Peer addresses of the queue pair that received the flow's last packet."""


@mypyc_attr(allow_interpreted_subclasses=True)
class FlowCache:
    """A cache from bytes to checked headers: the headers of a flow are parsed and checked only once."""

    _LIMIT = 1 << 14

    def __init__(
        self, udp_ports: Collection[int], *, needs_outer: bool = False, trimmed_dscps: Collection[int] = ()
    ) -> None:
        """Accept frames to these UDP ports. `needs_outer`: accept only frames with an outer IPv6 header."""
        self._udp_ports = tuple(udp_ports)
        self.needs_outer = needs_outer
        self._trimmed_dscps = tuple(trimmed_dscps)
        self.min_frame = (BTH_OFFSET if needs_outer else PLAIN_BTH_OFFSET) + MIN_LENGTH_AFTER_BTH
        """Length of the shortest accepted frame, bytes."""
        self.flows: dict[bytes, Flow] = {}

    def check(self, key: bytes) -> Flow | None:
        """Return the flow for the bytes from `FLOW_START` to the BTH; None for another protocol."""
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
        """Return the EV in a UDP source port and a flow label; 0 if the transport has no EVs."""
        return 0
