"""The packet format of RoCEv2: its headers, the frame around them, and the route of a queue pair.

The headers are those of [IBTA] chapter 9 that RDMA WRITEs of a reliable connection need. RETH and ImmDt are
in `mrclab.hosts.rdma.frames`. The BTH differs from MRC's in its flag bits and opcodes. All integers are big
endian. A frame may have an outer IPv6 header with a uSID container.

A queue pair keeps one path. The NIC computes flow label and UDP source port from the two QP numbers. In an
ECMP fabric the switches hash these fields. With SRv6 the sender computes a similar hash once, and chooses the
path.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from mrclab.hosts.rdma.frames import BTH_ACK_REQUEST, BTH_LEN, BTH_STRUCT, Buffer, WireError, build_prefix
from mrclab.hosts.rdma.paths import Path, PlanePaths, RemotePaths


class Opcode(IntEnum):
    """BTH opcodes of reliable connections (class 0b000 [IBTA Table 38]) and of CNPs [IBTA A17.9.3]."""

    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B
    ACKNOWLEDGE = 0x11
    CNP = 0x81


class Syndrome(IntEnum):
    """Bits 6:5 of AETH.syndrome: the kind of the answer [IBTA Table 44]."""

    ACK = 0
    RNR_NAK = 1
    NAK = 3


class NakCode(IntEnum):
    """Bits 4:0 of AETH.syndrome in a NAK [IBTA Table 46]."""

    PSN_SEQUENCE_ERROR = 0
    INVALID_REQUEST = 1
    REMOTE_ACCESS_ERROR = 2
    REMOTE_OPERATIONAL_ERROR = 3


NO_CREDIT_LIMIT = 0x1F
"""Credit count of an ACK that gives no end-to-end credits [IBTA 9.7.7.2]."""
BTH_BECN = 0x40
CNP_RESERVED = bytes(16)
"""The bytes after a CNP's BTH [IBTA Figure 349]."""

WRITE_STRUCT = struct.Struct(">BBHIIQII")
"""BTH and RETH."""
ACK_STRUCT = struct.Struct(">BBHIII")
"""BTH and AETH."""

_RNR_UNITS = (
    *(65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
    *(3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152),
)


def rnr_wait_ns(code: int) -> int:
    """Return the wait, ns, for the timer code of an RNR NAK: a multiple of 10 us [IBTA Table 45]."""
    return _RNR_UNITS[code & 31] * 10_000


def syndrome(kind: Syndrome, value: int) -> int:
    """Return AETH.syndrome of an answer: its kind, and its credit count, timer code or NAK code."""
    return kind << 5 | value & 31


@dataclass(frozen=True, slots=True)
class Bth:
    """Base transport header, 12 bytes [IBTA 9.2, A17.3.2]."""

    opcode: int
    dest_qpn: int
    psn: int
    ack_request: bool = False
    pad_count: int = 0
    pkey: int = 0xFFFF
    solicited: bool = False
    migration: bool = False
    version: int = 0
    fecn: bool = False
    becn: bool = False

    def pack(self) -> bytes:
        """Return the header's bytes."""
        second = (
            (0x80 if self.solicited else 0)
            | (0x40 if self.migration else 0)
            | (self.pad_count & 3) << 4
            | self.version & 15
        )
        notification = (0x80 if self.fecn else 0) | (BTH_BECN if self.becn else 0)
        return BTH_STRUCT.pack(
            self.opcode,
            second,
            self.pkey,
            notification << 24 | self.dest_qpn & 0xFFFFFF,
            (BTH_ACK_REQUEST if self.ack_request else 0) << 24 | self.psn & 0xFFFFFF,
        )

    @classmethod
    def unpack(cls, buffer: Buffer, offset: int = 0) -> Bth:
        """Read the header at `offset`. Raise WireError if the buffer is too short."""
        if offset < 0 or len(buffer) - offset < BTH_LEN:
            raise WireError(f"{len(buffer) - offset} bytes where {BTH_LEN} are needed")
        opcode, second, pkey, qpn, last = BTH_STRUCT.unpack_from(buffer, offset)
        return cls(
            opcode=opcode,
            dest_qpn=qpn & 0xFFFFFF,
            psn=last & 0xFFFFFF,
            ack_request=bool(last >> 31),
            pad_count=second >> 4 & 3,
            pkey=pkey,
            solicited=bool(second & 0x80),
            migration=bool(second & 0x40),
            version=second & 15,
            fecn=bool(qpn >> 31),
            becn=bool(qpn >> 30 & 1),
        )


class Route(NamedTuple):
    """The fields before the BTH that all frames of a queue pair have in common."""

    plane: PlanePaths
    outer_dst: bytes | None
    """uSID container; None for frames without an outer header."""
    label: int
    """IPv6 flow label."""
    source: int
    """UDP source port."""
    udp_port: int
    hop_limit: int


def prefix(route: Route, tclass: int, udp_length: int) -> tuple[bytes, int]:
    """Return the bytes before the BTH and the start value of the ICRC.

    `udp_length` is the UDP header's length field: all bytes from the UDP header to the end of the ICRC.
    """
    return build_prefix(
        route.plane,
        route.outer_dst,
        tclass=tclass,
        flow_label=route.label,
        source=route.source,
        udp_port=route.udp_port,
        hop_limit=route.hop_limit,
        udp_length=udp_length,
    )


def flow_label(local_qpn: int, remote_qpn: int) -> int:
    """Return the IPv6 flow label of a connection, 20 bits, as Linux computes it for RoCEv2.

    Both ends get the same label. Source: rdma_calc_flow_label of the kernel's ib_verbs.h.
    """
    value = local_qpn * remote_qpn
    value ^= value >> 20
    value ^= value >> 40
    return value & 0xFFFFF


def udp_source(label: int) -> int:
    """Return the UDP source port, at least 0xC000, for a flow label [IBTA A17.9.2].

    Source: rdma_flow_label_to_udp_sport of the kernel's ib_verbs.h.
    """
    return 0xC000 | (label & 0x3FFF) ^ (label >> 14)


def choose_plane(paths: RemotePaths, label: int) -> PlanePaths:
    """Return the plane of a connection, chosen by a hash. Both ends choose the same plane."""
    planes = paths.planes
    return planes[crc32(label.to_bytes(3, "big")) % len(planes)]


def choose_path(plane: PlanePaths, label: int, source: int, udp_port: int) -> Path:
    """Return a connection's path, chosen by a hash of the same fields that an ECMP switch hashes."""
    key = plane.src + plane.dst + b"".join(v.to_bytes(4, "big") for v in (label, source, udp_port))
    return plane.paths[crc32(key) % len(plane.paths)]
