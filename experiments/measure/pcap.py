"""Read captures of MRC and RoCEv2: a pcap file becomes numpy arrays, a million packets in two seconds.

This module reads the recorder's formats: pcap with nano- or microseconds, LINUX_SLL2 (`tcpdump -i any`) or
Ethernet. Packets have only the inner IPv6 header, or this header behind an outer IPv6 header with or without
an SRH. For the layouts see the MRC specification and [IBTA] chapter 9. Packets of other protocols, and an
incomplete last record, are left out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mrclab.linux.errors import InputError

LINKTYPE_ETHERNET = 1
LINKTYPE_LINUX_SLL2 = 276
MRC_PORT = 4791

_MAGIC_NANO = 0xA1B23C4D
_MAGIC_MICRO = 0xA1B2C3D4
_FILE_HEADER = 24
_RECORD_HEADER = 16
_LINK_BYTES = {LINKTYPE_ETHERNET: 14, LINKTYPE_LINUX_SLL2: 20}
SLL2_OUTGOING = 4
_CHUNK = 1 << 16
_ICRC = 4


def file_header(snaplen: int, linktype: int) -> bytes:
    """Return the header of a pcap file with nanoseconds, version 2.4, little-endian."""
    return struct.pack("<IHHiIII", _MAGIC_NANO, 2, 4, 0, 0, snaplen, linktype)


class Opcode(IntEnum):
    """BTH opcodes of MRC [SPEC §6.2.2].

    The list does not come from the hosts' code. So a wrong opcode in the hosts' code is visible in a capture.
    """

    WRITE_FIRST = 0xC6
    WRITE_MIDDLE = 0xC7
    WRITE_LAST = 0xC8
    WRITE_LAST_IMM = 0xC9
    WRITE_ONLY = 0xCA
    WRITE_ONLY_IMM = 0xCB
    ACKNOWLEDGE = 0xD1
    ENDPOINT_REQUEST = 0xD8
    ENDPOINT_RESPONSE = 0xD9
    SACK = 0xDC
    NACK = 0xDD
    PROBE_REQUEST = 0xDE


FIRST_DATA, LAST_DATA = Opcode.WRITE_FIRST, Opcode.WRITE_ONLY_IMM


class RoceOpcode(IntEnum):
    """BTH opcodes of RoCEv2's reliable connection that carry data [IBTA Table 38]."""

    WRITE_FIRST = 0x06
    WRITE_MIDDLE = 0x07
    WRITE_LAST = 0x08
    WRITE_LAST_IMM = 0x09
    WRITE_ONLY = 0x0A
    WRITE_ONLY_IMM = 0x0B


FIRST_ROCE, LAST_ROCE = RoceOpcode.WRITE_FIRST, RoceOpcode.WRITE_ONLY_IMM

# One row per packet, as in `Packets`. An address has two halves, because numpy has no 128-bit integer.
PACKET = np.dtype(
    [
        ("t_ns", "i8"),
        ("ifindex", "u4"),
        ("outgoing", "?"),
        ("outer_hi", "u8"),
        ("outer_lo", "u8"),
        ("src_hi", "u8"),
        ("src_lo", "u8"),
        ("dst_hi", "u8"),
        ("dst_lo", "u8"),
        ("dscp", "u1"),
        ("ecn", "u1"),
        ("ev", "u4"),
        ("opcode", "u1"),
        ("qp", "u4"),
        ("psn", "u4"),
        ("rtx", "?"),
        ("payload", "u4"),
        ("content", "u8"),
        ("trimmed", "?"),
        ("probe_reply", "?"),
        ("echo_ev", "u4"),
        ("echo_psn", "u4"),
    ]
)

_IP6 = [("vtf", ">u4"), ("length", ">u2"), ("next", "u1"), ("hops", "u1")]
_IP6 += [("src_hi", ">u8"), ("src_lo", ">u8"), ("dst_hi", ">u8"), ("dst_lo", ">u8")]
IP6 = np.dtype(_IP6)
# The inner IPv6 header, UDP and BTH.
_INNER = np.dtype(
    [
        *_IP6,
        ("sport", ">u2"),
        ("dport", ">u2"),
        ("udp_length", ">u2"),
        ("checksum", ">u2"),
        ("opcode", "u1"),
        ("flags", "u1"),
        ("pkey", ">u2"),
        ("qp", ">u4"),
        ("psn", ">u4"),
    ]
)
_SACK = np.dtype(
    [
        ("type", "u1"),
        ("bits", "u1"),
        ("ack_offset", ">i2"),
        ("entropy", ">u4"),
        ("dcids", ">u4"),
        ("cack", ">u4"),
    ]
)
_ROCE_WITH_RETH = (RoceOpcode.WRITE_FIRST, RoceOpcode.WRITE_ONLY, RoceOpcode.WRITE_ONLY_IMM)
_WITH_IMMEDIATE = (
    Opcode.WRITE_LAST_IMM,
    Opcode.WRITE_ONLY_IMM,
    RoceOpcode.WRITE_LAST_IMM,
    RoceOpcode.WRITE_ONLY_IMM,
)
_RTX_BIT, _TS_BIT, _PR_BIT = 1 << 29, 1 << 28, 0x02
# The bytes behind the BTH that trimming never removes: METH and RETH, or METH, TSETH and most of RETH.
_CONTENT = np.dtype([("a", "<u8"), ("b", "<u8"), ("c", "<u4")])
_MIX = np.uint64(0x9E3779B97F4A7C15)  # an odd multiplier: 2^64 divided by the golden ratio


@dataclass(frozen=True)
class Packets:
    """The MRC and RoCEv2 packets of a capture, in the file's order.

    ``rows`` has dtype PACKET:

    * ``t_ns``: the time in the file (CLOCK_REALTIME); ``outgoing``: this machine sent the packet.
    * ``outer_*``: the outer destination (the uSID container), or the inner one if there is no outer header.
    * ``dscp``, ``ecn``: from the outermost header; ``ev``: from UDP source port and inner flow label.
    * ``payload``: bytes of RDMA payload on the wire; ``trimmed``: a write lost its payload on the way.
    * ``content``: a hash of the 20 bytes behind a write's BTH, which no switch changes; 0 if there are fewer
      bytes.
    * ``echo_ev``, ``echo_psn``: on a SACK, the EV and PSN of the packet that it answers.

    RoCEv2 has no ``rtx``, no trimmed packets and no SACKs. ``records`` is the number of all records,
    ``skipped`` the number of records of other protocols. ``truncated`` is True if the file ends within a
    record.
    """

    rows: npt.NDArray[np.void]
    records: int
    skipped: int
    truncated: bool

    @property
    def is_data(self) -> npt.NDArray[np.bool_]:
        """A mask of the rows that are writes: first transmissions and retransmissions."""
        opcode = self.rows["opcode"]
        return _between(opcode, FIRST_DATA, LAST_DATA) | _between(opcode, FIRST_ROCE, LAST_ROCE)


class Capture(Protocol):
    """The common part of captures of all protocols: data packets, and whether the file ends within one."""

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """Return a row for each packet."""

    @property
    def truncated(self) -> bool:
        """Return True if the file ends within a record."""


def flaws(captures: Mapping[str, Capture]) -> list[str]:
    """Return a line for each incomplete and each empty capture, by the names of the hosts."""
    cut = [f"the capture at {host} is cut short" for host, found in captures.items() if found.truncated]
    empty = [f"the capture at {host} holds no packet" for host, f in captures.items() if not len(f.rows)]
    return cut + empty


def _between(opcode: npt.NDArray[np.uint8], first: int, last: int) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = (opcode >= first) & (opcode <= last)
    return mask


def read_pcap(path: Path | str, port: int = MRC_PORT) -> Packets:
    """Read a capture from a file. ``port`` is the UDP destination port of MRC and RoCEv2.

    Raise InputError if the file cannot be read or is not a capture of a known kind.
    """
    return parse_pcap(read_bytes(path), where=str(path), port=port)


def read_bytes(path: Path | str) -> bytes:
    """Return the bytes of a capture file. Raise InputError if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the capture: {error.strerror}", where=str(path)) from None


def parse_pcap(data: bytes, where: str = "capture", port: int = MRC_PORT) -> Packets:
    """Read a capture like `read_pcap`, but from the bytes of a file."""
    file = open_records(data, where)
    parts = [_decode(file, chunk, port) for chunk in chunks(file.offsets)]
    rows = np.concatenate(parts) if parts else np.empty(0, PACKET)
    return Packets(rows, len(file.offsets), len(file.offsets) - len(rows), file.truncated)


@dataclass(frozen=True)
class Records:
    """The records of a pcap file, whose protocols are not parsed yet.

    ``raw`` has the file's bytes, followed by zeros. ``offsets`` has the offset of each record. ``order`` is
    the byte order, as in the struct module. ``scale`` is the unit of the times' fractions in ns (1 or 1000).
    """

    raw: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]
    truncated: bool
    order: str
    scale: int
    linktype: int


def open_records(data: bytes, where: str) -> Records:
    """Find the records of a pcap file. Raise InputError if the file is not a capture of a known kind."""
    if len(data) < _FILE_HEADER:
        raise InputError("not a capture: shorter than a pcap header", where=where)
    for order in "<", ">":
        magic = struct.unpack_from(order + "I", data)[0]
        if magic in (_MAGIC_NANO, _MAGIC_MICRO):
            break
    else:
        raise InputError(f"not a pcap capture (magic {data[:4].hex()})", where=where)
    linktype = struct.unpack_from(order + "I", data, 20)[0] & 0x0FFFFFFF
    if linktype not in _LINK_BYTES:
        raise InputError(f"link type {linktype} is neither LINUX_SLL2 nor Ethernet", where=where)
    offsets, truncated = _walk(data, order)
    scale = 1 if magic == _MAGIC_NANO else 1000
    # `gather` reads a fixed number of bytes at each offset. The zeros make this possible for the last record,
    # too. Zeros are not data, so `_decode` compares the ends of headers with the end of the record.
    raw = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(512, np.uint8)])
    return Records(raw, offsets, truncated, order, scale, linktype)


def _walk(data: bytes, order: str) -> tuple[npt.NDArray[np.int64], bool]:
    """Return the offset of every whole record, and True if an incomplete record follows."""
    length_at = struct.Struct(order + "I").unpack_from
    offsets: list[int] = []
    add = offsets.append
    at, end = _FILE_HEADER, len(data)
    last_header = end - _RECORD_HEADER
    while at <= last_header:
        following = at + _RECORD_HEADER + length_at(data, at + 8)[0]
        if following > end:
            break
        add(at)
        at = following
    return np.array(offsets, dtype=np.int64), at != end


def chunks(offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the offsets in chunks whose records fit into the CPU's caches."""
    for start in range(0, len(offsets), _CHUNK):
        yield offsets[start : start + _CHUNK]


def gather(
    raw: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], layout: np.dtype[np.void]
) -> npt.NDArray[np.void]:
    """Return an array of shape (n,) with the data at each offset, in the given layout."""
    windows = np.lib.stride_tricks.sliding_window_view(raw, layout.itemsize)
    return np.ascontiguousarray(windows[at]).view(layout)[:, 0]


@dataclass(frozen=True)
class Frames:
    """The link and IP headers of some records, in arrays of shape (n,).

    ``t_ns`` is the time in the file. ``link_at``, ``ip_at`` and ``end`` are offsets into the file. ``wire``
    is the frame's length in bytes. ``outer`` is the frame's first IPv6 header. If the frame has no IPv6
    header, these bytes mean nothing.
    """

    t_ns: npt.NDArray[np.int64]
    ifindex: npt.NDArray[np.uint32]
    outgoing: npt.NDArray[np.bool_]
    link_at: npt.NDArray[np.int64]
    ip_at: npt.NDArray[np.int64]
    end: npt.NDArray[np.int64]
    wire: npt.NDArray[np.int64]
    outer: npt.NDArray[np.void]


def frames(file: Records, records: npt.NDArray[np.int64]) -> Frames:
    """Read the link and IP headers of the records at these offsets."""
    u4 = file.order + "u4"
    head = gather(file.raw, records, np.dtype([("s", u4), ("frac", u4), ("kept", u4), ("wire", u4)]))
    link_at = records + _RECORD_HEADER
    ip_at = link_at + _LINK_BYTES[file.linktype]
    ifindex, outgoing = np.zeros(len(records), np.uint32), np.zeros(len(records), bool)
    if file.linktype == LINKTYPE_LINUX_SLL2:
        layout = np.dtype([("x", "V4"), ("ifindex", ">u4"), ("arp", "V2"), ("kind", "u1")])
        link = gather(file.raw, link_at, layout)
        ifindex, outgoing = link["ifindex"].astype(np.uint32), link["kind"] == SLL2_OUTGOING
    return Frames(
        t_ns=head["s"].astype(np.int64) * 1_000_000_000 + head["frac"].astype(np.int64) * file.scale,
        ifindex=ifindex,
        outgoing=outgoing,
        link_at=link_at,
        ip_at=ip_at,
        end=link_at + head["kept"].astype(np.int64),
        wire=head["wire"].astype(np.int64),
        outer=gather(file.raw, ip_at, IP6),
    )


def _decode(file: Records, records: npt.NDArray[np.int64], port: int) -> npt.NDArray[np.void]:
    raw, frame = file.raw, frames(file, records)
    link_at, ip_at, end, outer = frame.link_at, frame.ip_at, frame.end, frame.outer

    # The inner header follows an outer IPv6 header, with or without an SRH, or it is the only header.
    inner_at = ip_at.copy()
    wrapped = outer["next"] == 41
    inner_at[wrapped] += 40
    routed = outer["next"] == 43
    inner_at[routed] += 40 + 8 * (raw[np.minimum(ip_at[routed] + 41, len(raw) - 1)].astype(np.int64) + 1)
    # If an SRH has a wrong length, the offset must still be within the buffer.
    inner_at = np.minimum(inner_at, len(raw) - 256)
    inner = gather(raw, inner_at, _INNER)
    good = (outer["vtf"] >> 28 == 6) & (inner["vtf"] >> 28 == 6) & (inner["next"] == 17)
    good &= (inner["dport"] == port) & (inner_at + _INNER.itemsize <= end)

    outer, inner = outer[good], inner[good]
    link_at, inner_at, end = link_at[good], inner_at[good], end[good]
    rows = np.zeros(len(outer), PACKET)
    rows["t_ns"] = frame.t_ns[good]
    rows["ifindex"], rows["outgoing"] = frame.ifindex[good], frame.outgoing[good]
    rows["outer_hi"], rows["outer_lo"] = outer["dst_hi"], outer["dst_lo"]
    for name in "src_hi", "src_lo", "dst_hi", "dst_lo", "opcode":
        rows[name] = inner[name]
    rows["dscp"] = outer["vtf"] >> 22 & 0x3F
    rows["ecn"] = outer["vtf"] >> 20 & 0x3
    rows["ev"] = (inner["vtf"] & 0xFFFF) << 16 | inner["sport"]
    rows["qp"] = inner["qp"] & 0xFFFFFF
    rows["psn"] = inner["psn"] & 0xFFFFFF
    rows["rtx"] = inner["psn"] & _RTX_BIT != 0
    _data_fields(raw, rows, inner, inner_at, end, link_at, frame.wire[good])
    _sack_fields(raw, rows, inner_at, end)
    return rows


def _data_fields(
    raw: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    inner: npt.NDArray[np.void],
    inner_at: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
    link_at: npt.NDArray[np.int64],
    wire: npt.NDArray[np.int64],
) -> None:
    """Set each write's payload length, and the hash of its content.

    The length is computed twice: from UDP's length and from the bytes on the wire. The smaller length is
    used, so that a trim is visible.
    """
    opcode = rows["opcode"]
    mrc, roce = _between(opcode, FIRST_DATA, LAST_DATA), _between(opcode, FIRST_ROCE, LAST_ROCE)
    extension = np.where(mrc, 4 + (inner["psn"] & _TS_BIT != 0) * 4, 0).astype(np.int64)
    placed = mrc | np.isin(opcode, _ROCE_WITH_RETH)
    immediate = np.isin(opcode, _WITH_IMMEDIATE).astype(np.int64) * 4
    pad = (inner["flags"] >> 4 & 3).astype(np.int64)
    headers = 12 + extension + 16 * placed + immediate + pad
    by_udp = inner["udp_length"].astype(np.int64) - 8 - headers - _ICRC
    by_wire = wire - (inner_at - link_at) - 48 - headers - _ICRC
    payload = np.clip(np.minimum(by_udp, by_wire), 0, None)
    rows["payload"] = np.where(mrc | roce, payload, 0)
    length_at = inner_at + _INNER.itemsize + extension + 12
    known = mrc & (length_at + 4 <= end)
    length = np.zeros(len(rows), np.int64)
    length[known] = gather(raw, length_at[known], np.dtype([("length", ">u4")]))["length"]
    rows["trimmed"] = mrc & (payload == 0) & (length > 0)
    content_at = inner_at + _INNER.itemsize
    long = (mrc | roce) & (inner["udp_length"] >= 8 + 12 + _CONTENT.itemsize)
    long &= content_at + _CONTENT.itemsize <= end
    words = gather(raw, content_at[long], _CONTENT)
    rows["content"][long] = (words["a"] * _MIX + words["b"]) * _MIX + words["c"]


def _sack_fields(
    raw: npt.NDArray[np.uint8],
    rows: npt.NDArray[np.void],
    inner_at: npt.NDArray[np.int64],
    end: npt.NDArray[np.int64],
) -> None:
    at = inner_at + _INNER.itemsize
    sack = (rows["opcode"] == Opcode.SACK) & (at + _SACK.itemsize <= end)
    if not sack.any():
        return
    seth = gather(raw, at[sack], _SACK)
    rows["probe_reply"][sack] = seth["bits"] & _PR_BIT != 0
    rows["echo_ev"][sack] = seth["entropy"]
    # The cumulative PSN plus the offset is the PSN that triggered the SACK [SPEC Table 7-12].
    echo = (seth["cack"].astype(np.int64) & 0xFFFFFF) + seth["ack_offset"].astype(np.int64)
    rows["echo_psn"][sack] = echo & 0xFFFFFF
