"""TCP over IPv6: captured segments with data, and whether each range of sent bytes arrived.

With segmentation offload, a host's capture has segments of up to 64 KiB. The capture at the other host may
have the same bytes in different pieces. So bytes are compared, not packets.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.pcap import Records, chunks, frames, gather, open_records, read_bytes
from mrclab.experiments.measure.recording import ClockMap
from mrclab.experiments.measure.trace import (
    IntArray,
    RoundTrips,
    Rows,
    Trace,
    addresses,
    codes,
    match,
    port_addresses,
    rank,
    unwrap_flows,
)
from mrclab.topologies import Fabric
from mrclab.topologies import Path as FabricPath

# One row per segment with data. ``t_ns`` is the time in the capture. An IPv6 address has two halves.
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


class Captured(NamedTuple):
    """The segments with data of a capture (dtype SEGMENT), and True if the file ends within a record."""

    rows: npt.NDArray[np.void]
    truncated: bool


def read_segments(path: Path | str) -> Captured:
    """Read the segments with data from a capture, in the file's order.

    Raise InputError if the file is not a valid capture.
    """
    return _captured(open_records(read_bytes(path), str(path)))


def parse_segments(data: bytes, where: str = "capture") -> npt.NDArray[np.void]:
    """Read segments like `read_segments`, but from the bytes of a file."""
    return _captured(open_records(data, where)).rows


def _captured(file: Records) -> Captured:
    parts = [_decode(file, chunk) for chunk in chunks(file.offsets)]
    return Captured(np.concatenate(parts) if parts else np.empty(0, SEGMENT), file.truncated)


def _decode(file: Records, records: npt.NDArray[np.int64]) -> npt.NDArray[np.void]:
    frame = frames(file, records)
    outer, at = frame.outer, frame.ip_at + _IP6_HEADER
    tcp = gather(file.raw, at, _TCP)
    length = outer["length"].astype(np.int64)
    length[length == 0] = (frame.wire - (at - frame.link_at))[length == 0]  # 0: the length exceeds 16 bits
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


SEQUENCE_BITS = 32
Segments = npt.NDArray[np.void]


def build_tcp_trace(
    sender: Segments, receiver: Segments, paths: Sequence[FabricPath], clock: ClockMap, fabric: Fabric
) -> Trace:
    """Combine two captures of segments: the data from the paths' sender to their receiver.

    All segments of a connection, at both ends, are cut where any segment begins or ends. So a range of bytes
    is either completely in a segment or not at all. Round trips are not measured.
    """
    src, dst = (port_addresses(fabric, host) for host in (paths[0].src, paths[0].dst))
    tx, rx = _between(sender, True, src, dst), _between(receiver, False, src, dst)
    tx_t, rx_t = clock.to_monotonic(tx["t_ns"]), clock.to_monotonic(rx["t_ns"])
    tx_order, rx_order = np.argsort(tx_t, kind="stable"), np.argsort(rx_t, kind="stable")
    tx, tx_t, rx, rx_t = tx[tx_order], tx_t[tx_order], rx[rx_order], rx_t[rx_order]
    n = len(tx)
    both = np.concatenate([tx, rx])
    t_ns = np.concatenate([tx_t, rx_t])
    flow = _connections(both)
    begin = unwrap_flows(t_ns, flow, both["seq"].astype(np.int64), n, SEQUENCE_BITS)
    row, low, high = _cut(flow, begin, begin + both["payload"].astype(np.int64))
    packet = codes(flow[row], low) if len(row) else low
    out = row < n
    sides = [Rows(t_ns[r], flow[r], lo, p, p) for r, lo, p in _split(out, row, low, packet)]
    resent = np.zeros(int(np.count_nonzero(out)), bool)
    if len(resent):
        _, first = np.unique(packet[out], return_index=True)
        resent[:] = True
        resent[first] = False
    sent, received = match(
        *sides,
        ev=(np.zeros(len(resent), np.int64), np.zeros(len(row) - len(resent), np.int64)),
        path=np.full(len(resent), -1, np.int64),
        rtx=resent,
        payload=((high - low)[out], (high - low)[~out]),
        trimmed=np.zeros(len(row) - len(resent), bool),
        frame=row[out],
    )
    nothing = np.zeros(0, np.int64)
    return Trace(tuple(paths), sent, received, RoundTrips(nothing, nothing), clock, paths_known=False)


def _between(
    segments: Segments, outgoing: bool, src: npt.NDArray[np.void], dst: npt.NDArray[np.void]
) -> Segments:
    ours = segments[segments["outgoing"] == outgoing]
    ours = ours[np.isin(addresses(ours["src_hi"], ours["src_lo"]), src)]
    between: Segments = ours[np.isin(addresses(ours["dst_hi"], ours["dst_lo"]), dst)]
    return between


def _connections(segments: Segments) -> IntArray:
    names = ["src_hi", "src_lo", "dst_hi", "dst_lo", "sport", "dport"]
    columns = [rank(segments[name].astype(np.uint64).view(np.int64)) for name in names]
    return rank(codes(*columns)) if len(segments) else np.zeros(0, np.int64)


def _cut(flow: IntArray, begin: IntArray, end: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Cut each range where any range of its flow begins or ends.

    Return the range of each piece, and the piece's two ends, in the order of the ranges.
    """
    rows, lows, highs = [], [], []
    for number in np.unique(flow):
        ours = np.flatnonzero(flow == number)
        edges = np.unique(np.concatenate([begin[ours], end[ours]]))
        first, last = np.searchsorted(edges, begin[ours]), np.searchsorted(edges, end[ours])
        count = last - first
        row = np.repeat(ours, count)
        piece = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        rows.append(row)
        lows.append(edges[piece])
        highs.append(edges[piece + 1])
    if not rows:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    row = np.concatenate(rows)
    order = np.argsort(row, kind="stable")
    return row[order], np.concatenate(lows)[order], np.concatenate(highs)[order]


def _split(out: npt.NDArray[np.bool_], *columns: IntArray) -> list[tuple[IntArray, ...]]:
    return [tuple(column[side] for column in columns) for side in (out, ~out)]
