"""A reader of captures of TCP over IPv6: every segment with data, as numpy arrays.

With segmentation offload a capture at a host holds segments of up to 64 KiB, and the capture at the other
host may hold the same bytes in other pieces. So segments are not compared as packets, but byte for byte.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.pcap import Records, chunks, frames, gather, open_records, read_bytes

# One row per segment that carries data. ``t_ns`` as stamped; addresses are two halves each.
SEGMENT = np.dtype(
    [
        ("t_ns", "i8"),
        ("outgoing", "?"),
        ("src_hi", "u8"),
        ("src_lo", "u8"),
        ("dst_hi", "u8"),
        ("dst_lo", "u8"),
        ("sport", "u2"),
        ("dport", "u2"),
        ("seq", "u4"),
        ("payload", "u4"),
    ]
)
_TCP = np.dtype([("sport", ">u2"), ("dport", ">u2"), ("seq", ">u4"), ("ack", ">u4"), ("offset", "u1")])
_IP6_HEADER, _TCP_HEADER = 40, 20


def read_segments(path: Path | str) -> npt.NDArray[np.void]:
    """Read the segments with data of a capture: dtype SEGMENT, in the file's order. Raise InputError."""
    return parse_segments(read_bytes(path), str(path))


def parse_segments(data: bytes, where: str = "capture") -> npt.NDArray[np.void]:
    """Read segments as `read_segments` does, from the bytes of a file."""
    file = open_records(data, where)
    parts = [_decode(file, chunk) for chunk in chunks(file.offsets)]
    return np.concatenate(parts) if parts else np.empty(0, SEGMENT)


def _decode(file: Records, records: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    frame = frames(file, records)
    outer, at = frame.outer, frame.ip_at + _IP6_HEADER
    tcp = gather(file.raw, at, _TCP)
    length = outer["length"].astype(np.int64)
    length[length == 0] = (frame.wire - (at - frame.link_at))[length == 0]  # longer than 16 bits can hold
    payload = length - (tcp["offset"] >> 4).astype(np.int64) * 4
    good = (outer["vtf"] >> 28 == 6) & (outer["next"] == 6) & (at + _TCP_HEADER <= frame.end) & (payload > 0)
    rows = np.zeros(int(np.count_nonzero(good)), SEGMENT)
    rows["t_ns"], rows["outgoing"] = frame.t_ns[good], frame.outgoing[good]
    for name in ("src_hi", "src_lo", "dst_hi", "dst_lo"):
        rows[name] = outer[name][good]
    for name in ("sport", "dport", "seq"):
        rows[name] = tcp[name][good]
    rows["payload"] = payload[good]
    return rows
