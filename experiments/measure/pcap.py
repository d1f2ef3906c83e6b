"""Reads a capture of MRC traffic into numpy arrays, a million packets in a second or two.

Understands what the recorder writes: pcap with nano- or microseconds, LINUX_SLL2 (`tcpdump -i any`) or
Ethernet, outer IPv6 (with or without an SRH) around inner IPv6, or IPv6 alone. The layouts are those of
reference/mrc.md sections 1.1-1.8. What is not MRC is counted and left out. A capture cut short in its last
record, as a killed tcpdump leaves it, is read up to there.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from linux.errors import InputError

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
    """The header of a pcap file with nanoseconds, version 2.4, little-endian."""
    return struct.pack("<IHHiIII", _MAGIC_NANO, 2, 4, 0, 0, snaplen, linktype)


class Opcode(IntEnum):
    """BTH opcodes of MRC (mrc.md 1.5); not the hosts' own, since their word is what a capture is to check."""

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

# One row per MRC packet. Addresses are two halves, since numpy has no 128-bit integer. For what a field
# means see `Packets`.
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
        ("trimmed", "?"),
        ("probe_reply", "?"),
        ("echo_ev", "u4"),
        ("echo_psn", "u4"),
    ]
)

_IP6 = [("vtf", ">u4"), ("length", ">u2"), ("next", "u1"), ("hops", "u1")]
_IP6 += [("src_hi", ">u8"), ("src_lo", ">u8"), ("dst_hi", ">u8"), ("dst_lo", ">u8")]
_OUTER = np.dtype(_IP6)
# inner IPv6, UDP, BTH
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
_RTX_BIT, _TS_BIT, _PR_BIT = 1 << 29, 1 << 28, 0x02


@dataclass(frozen=True)
class Packets:
    """The MRC packets of a capture, in the file's order.

    ``rows`` has dtype PACKET: ``t_ns`` as stamped (CLOCK_REALTIME), ``outgoing`` true where this machine
    sent it, ``outer_*`` the outer destination (the uSID container; the inner destination where nothing is
    wrapped round), ``dscp``/``ecn`` of the outermost header, ``ev`` from UDP source port and inner flow
    label, ``payload`` bytes of RDMA payload on the wire, ``trimmed`` where a write lost its payload on the
    way; on a SACK ``echo_ev`` and ``echo_psn`` name the packet that it answers. ``records`` counts all
    records read, ``skipped`` those that are not MRC, ``truncated`` says that the file ended in the middle
    of one.
    """

    rows: npt.NDArray[np.void]
    records: int
    skipped: int
    truncated: bool

    @property
    def is_data(self) -> npt.NDArray[np.bool_]:
        """Which rows are writes, first transmissions and retransmissions alike."""
        return (self.rows["opcode"] >= FIRST_DATA) & (self.rows["opcode"] <= LAST_DATA)


def read_pcap(path: Path | str, port: int = MRC_PORT) -> Packets:
    """Reads the capture in a file. ``port`` is MRC's UDP destination port.

    Raises InputError where the file cannot be read or is no capture of a kind we know.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the capture: {error.strerror}", where=str(path)) from None
    return parse_pcap(data, where=str(path), port=port)


def parse_pcap(data: bytes, where: str = "capture", port: int = MRC_PORT) -> Packets:
    """As `read_pcap`, from the bytes of a file."""
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
    # zeros behind the end let every window be read whole; lengths are checked against the record's own
    raw = np.concatenate([np.frombuffer(data, np.uint8), np.zeros(512, np.uint8)])
    parts = [_decode(raw, chunk, order, scale, linktype, port) for chunk in _chunks(offsets)]
    rows = np.concatenate(parts) if parts else np.empty(0, PACKET)
    return Packets(rows, len(offsets), len(offsets) - len(rows), truncated)


def _walk(data: bytes, order: str) -> tuple[npt.NDArray[np.int64], bool]:
    """The offset of every whole record, and whether something is left over behind the last."""
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


def _chunks(offsets: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    for start in range(0, len(offsets), _CHUNK):
        yield offsets[start : start + _CHUNK]


def _gather(
    raw: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], layout: np.dtype[np.void]
) -> npt.NDArray[np.void]:
    """The structure of that layout at each offset: shape (n,)."""
    windows = np.lib.stride_tricks.sliding_window_view(raw, layout.itemsize)
    return np.ascontiguousarray(windows[at]).view(layout)[:, 0]


def _decode(
    raw: npt.NDArray[np.uint8],
    records: npt.NDArray[np.int64],
    order: str,
    scale: int,
    linktype: int,
    port: int,
) -> npt.NDArray[np.void]:
    u4 = order + "u4"
    head = _gather(raw, records, np.dtype([("s", u4), ("frac", u4), ("kept", u4), ("wire", u4)]))
    link_at = records + _RECORD_HEADER
    end = link_at + head["kept"].astype(np.int64)
    ip_at = link_at + _LINK_BYTES[linktype]
    outer = _gather(raw, ip_at, _OUTER)

    # where the inner header stands: behind an outer IPv6, behind that and an SRH, or it is the only one
    inner_at = ip_at.copy()
    wrapped = outer["next"] == 41
    inner_at[wrapped] += 40
    routed = outer["next"] == 43
    inner_at[routed] += 40 + 8 * (raw[np.minimum(ip_at[routed] + 41, len(raw) - 1)].astype(np.int64) + 1)
    # an SRH that claims more than there is must not lead out of the buffer
    inner_at = np.minimum(inner_at, len(raw) - 256)
    inner = _gather(raw, inner_at, _INNER)
    good = (outer["vtf"] >> 28 == 6) & (inner["vtf"] >> 28 == 6) & (inner["next"] == 17)
    good &= (inner["dport"] == port) & (inner_at + _INNER.itemsize <= end)

    head, outer, inner = head[good], outer[good], inner[good]
    link_at, ip_at, inner_at, end = link_at[good], ip_at[good], inner_at[good], end[good]
    rows = np.zeros(len(head), PACKET)
    rows["t_ns"] = head["s"].astype(np.int64) * 1_000_000_000 + head["frac"].astype(np.int64) * scale
    if linktype == LINKTYPE_LINUX_SLL2:
        link = _gather(
            raw, link_at, np.dtype([("x", "V4"), ("ifindex", ">u4"), ("arp", "V2"), ("kind", "u1")])
        )
        rows["ifindex"] = link["ifindex"]
        rows["outgoing"] = link["kind"] == SLL2_OUTGOING
    rows["outer_hi"], rows["outer_lo"] = outer["dst_hi"], outer["dst_lo"]
    for name in "src_hi", "src_lo", "dst_hi", "dst_lo", "opcode":
        rows[name] = inner[name]
    rows["dscp"] = outer["vtf"] >> 22 & 0x3F
    rows["ecn"] = outer["vtf"] >> 20 & 0x3
    rows["ev"] = (inner["vtf"] & 0xFFFF) << 16 | inner["sport"]
    rows["qp"] = inner["qp"] & 0xFFFFFF
    rows["psn"] = inner["psn"] & 0xFFFFFF
    rows["rtx"] = inner["psn"] & _RTX_BIT != 0
    _data_fields(raw, rows, inner, inner_at, end, link_at, head["wire"].astype(np.int64))
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
    """Payload of writes: what UDP says or what was on the wire, whichever is less, so that a trim shows."""
    opcode = rows["opcode"]
    data = (opcode >= FIRST_DATA) & (opcode <= LAST_DATA)
    stamped = (inner["psn"] & _TS_BIT != 0).astype(np.int64) * 4
    immediate = np.isin(opcode, (Opcode.WRITE_LAST_IMM, Opcode.WRITE_ONLY_IMM)).astype(np.int64) * 4
    pad = inner["flags"] >> 4 & 3
    headers = 12 + 4 + stamped + 16 + immediate + pad.astype(np.int64)
    by_udp = inner["udp_length"].astype(np.int64) - 8 - headers - _ICRC
    by_wire = wire - (inner_at - link_at) - 48 - headers - _ICRC
    payload = np.clip(np.minimum(by_udp, by_wire), 0, None)
    rows["payload"] = np.where(data, payload, 0)
    length_at = inner_at + _INNER.itemsize + 4 + stamped + 12
    known = data & (length_at + 4 <= end)
    length = np.zeros(len(rows), np.int64)
    length[known] = _gather(raw, length_at[known], np.dtype([("length", ">u4")]))["length"]
    rows["trimmed"] = data & (payload == 0) & (length > 0)


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
    seth = _gather(raw, at[sack], _SACK)
    rows["probe_reply"][sack] = seth["bits"] & _PR_BIT != 0
    rows["echo_ev"][sack] = seth["entropy"]
    # cumulative PSN + offset is the PSN that set the SACK off (mrc.md 1.8)
    echo = (seth["cack"].astype(np.int64) & 0xFFFFFF) + seth["ack_offset"].astype(np.int64)
    rows["echo_psn"][sack] = echo & 0xFFFFFF
