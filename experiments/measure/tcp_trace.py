"""Traces of TCP: every range of bytes that was sent, and its fate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.clock import ClockMap
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

SEQUENCE_BITS = 32
Segments = npt.NDArray[np.void]


def build_tcp_trace(
    sender: Segments, receiver: Segments, paths: Sequence[FabricPath], clock: ClockMap, fabric: Fabric
) -> Trace:
    """Put two captures of segments together: the data from the paths' sender to their receiver.

    All segments of a connection, at both ends, are cut wherever one of them begins or ends, so that a range
    of bytes is either in a segment or not. Round trips are not looked for.
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
    """Cut ranges at all ends of ranges of their flow: the range that each piece is of, its two ends.

    Pieces are in the order of the ranges.
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
