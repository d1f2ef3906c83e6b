"""The data of a spray workload's pictures: packets during one recovery, rates, paths in use, distributions.

The data is stored in result.json, so that a page can be drawn again without the captures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.trace import NEVER, IntArray, Trace
from mrclab.experiments.measure.trial import Scene
from mrclab.experiments.result.statistics import MIN_FOR_INTERVAL, t_factor

Floats = npt.NDArray[np.float64]
_POINTS = 400  # the most points of a curve
_MOST_PACKETS = 3000  # the most packets of one kind in a picture
_MOST_FLIGHTS = 160  # the most packets in the replay of one recovery
_COLUMNS = 400  # columns of the picture of the paths in use
_BEFORE_NS = 50_000_000  # the time before a fault in which the normal rate is measured


def pictures_of(trace: Trace, scenes: Mapping[int, Scene], log: EventLog) -> dict[str, Any]:
    """Return the data of all pictures; empty if no packet was received.

    ``trace`` has the packets of one pair of hosts, ``scenes`` the faults by trial, ``log`` the sender's
    events.
    """
    if not len(trace.received.t_ns):
        return {}
    found: dict[str, Any] = {"spread": _spread(trace, list(scenes.values()))}
    timed = {n: s for n, s in scenes.items() if s.times.recovered.ns is not None}
    if timed:
        middle = representative(timed)
        reach = _reach_ns(list(timed.values()))
        found["packets"] = {"trial": middle, **_packets(trace, timed[middle], reach)}
        found["replay"] = {"trial": middle, **_replay(trace, timed[middle])}
        found["delivered"] = _delivered(trace, timed, middle, reach)
        found["paths"] = {"trial": middle, **_paths(trace, timed[middle], log)}
    return found


def representative(scenes: Mapping[int, Scene]) -> int:
    """Return the number of the trial with the median recovery. Every scene must have a recovery."""
    ordered = sorted(scenes, key=lambda number: scenes[number].times.recovered.ns or 0)
    return ordered[len(ordered) // 2]


def _reach_ns(scenes: Sequence[Scene]) -> tuple[int, int]:
    """Return a time span around the fault that contains most recoveries, with a margin at both ends."""
    most = int(np.percentile([scene.times.recovered.ns or 0 for scene in scenes], 75))
    return -max(most // 2, 300_000), max(int(2.5 * most), 1_000_000)


def _packets(trace: Trace, scene: Scene, reach: tuple[int, int]) -> dict[str, Any]:
    """Return the packets of a trial that were sent or received within ``reach`` (ns since the fault).

    Each packet has its time in us since the fault, and its PSN, counted from the smallest sent PSN.
    """
    zero, (low, high) = scene.fault.middle_ns, reach
    sent, received = trace.sent, trace.received
    out = (sent.t_ns >= zero + low) & (sent.t_ns <= zero + high)
    base = int(sent.psn[out].min()) if out.any() else 0
    came = (received.t_ns >= zero + low) & (received.t_ns <= zero + high) & received.first
    again = np.isin(received.tx, np.flatnonzero(sent.rtx))

    def marks(t_ns: npt.NDArray[np.int64], psn: npt.NDArray[np.int64]) -> dict[str, Any]:
        step = max(1, -(-len(t_ns) // _MOST_PACKETS))
        return {"t_us": ((t_ns[::step] - zero) / 1e3).round(1).tolist(), "psn": (psn[::step] - base).tolist()}

    return {
        "from_us": low / 1e3,
        "to_us": high / 1e3,
        "sent": marks(sent.t_ns[out & ~sent.rtx & ~sent.lost], sent.psn[out & ~sent.rtx & ~sent.lost]),
        "lost": marks(sent.t_ns[out & sent.lost], sent.psn[out & sent.lost]),
        "resent": marks(sent.t_ns[out & sent.rtx], sent.psn[out & sent.rtx]),
        "delivered": marks(received.t_ns[came & ~again], received.psn[came & ~again]),
        "redelivered": marks(received.t_ns[came & again], received.psn[came & again]),
    }


def _replay(trace: Trace, scene: Scene) -> dict[str, Any]:
    """Return the packets of one recovery, from shortly before the fault until all data was delivered.

    Each packet is [sent, EV, arrived or null, 1 if sent again], in us since the fault. If there are too many
    packets, some packets are left out. Packets that were lost or sent again always stay.
    """
    zero, sent = scene.fault.middle_ns, trace.sent
    took = max(scene.times.recovered.ns or 0, 100_000)
    low, high = -took // 6, took + took // 6
    here = np.flatnonzero((sent.t_ns >= zero + low) & (sent.t_ns <= zero + high) & (sent.path >= 0))
    special = sent.lost[here] | sent.rtx[here]
    step = max(1, -(-int(np.count_nonzero(~special)) // max(1, _MOST_FLIGHTS - int(special.sum()))))
    shown = np.sort(np.concatenate([here[special][:_MOST_FLIGHTS], here[~special][::step]]))

    def us(t_ns: int) -> float | None:
        return None if t_ns == NEVER else round((t_ns - zero) / 1e3, 1)

    return {
        "from_us": low / 1e3,
        "to_us": high / 1e3,
        "ends": [trace.paths[0].src, trace.paths[0].dst],
        "flights": [
            [
                us(int(sent.t_ns[i])),
                trace.paths[int(sent.path[i])].ev,
                us(int(sent.arrived_ns[i])),
                int(sent.rtx[i]),
            ]
            for i in shown.tolist()
        ],
    }


def _delivered(
    trace: Trace, scenes: Mapping[int, Scene], middle: int, reach: tuple[int, int]
) -> dict[str, Any]:
    """Return the payload received around the faults as a running sum: over all paths, and over broken paths.

    The values are the mean over the trials and its 95 % interval, at the ends of bins. With fewer than six
    trials, the interval has no width. A bin is at least as long as the normal gap between bursts of packets.
    ``per_us`` is the rate before the faults in bytes/us.
    """
    received = trace.received
    bin_ns = max(round(_burst_ns(trace, scenes)), -(-(reach[1] - reach[0]) // _POINTS), 1)
    edges = np.arange(reach[0] // bin_ns, -(-reach[1] // bin_ns) + 1) * bin_ns
    found: dict[str, Any] = {"trials": len(scenes), "trial": middle}
    found |= {"bin_us": bin_ns / 1e3, "t_us": (edges / 1e3).round(3).tolist()}
    path = np.where(received.tx >= 0, trace.sent.path[received.tx], -1)
    for name in ("all", "broken"):
        curves, rates = [], []
        for scene in scenes.values():
            hit = np.array([scene.fault.breaks(path) for path in trace.paths] + [False])
            chosen = received.first & (hit[path] if name == "broken" else True)
            since, payload = received.t_ns[chosen] - scene.fault.middle_ns, received.payload[chosen]
            total = np.append(0, np.cumsum(payload))
            at = total[np.searchsorted(since, edges, side="left")]
            curves.append(at - at[0])
            # In virtual time, less than _BEFORE_NS may lie between the start of the trial and the fault.
            length_ns = min(_BEFORE_NS, scene.fault.middle_ns - scene.span.start)
            before = payload[(since >= -length_ns) & (since < 0)].sum()
            rates.append(before * 1e3 / length_ns if length_ns else 0.0)
        if not any(rates):
            continue
        table = np.array(curves, np.float64)
        mean = table.mean(axis=0)
        half = np.zeros(len(mean))
        if len(table) >= MIN_FOR_INTERVAL:
            half = t_factor(len(table) - 1) * table.std(axis=0, ddof=1) / np.sqrt(len(table))
        found[name] = {
            "per_us": float(np.mean(rates)),
            "mean": mean.round(1).tolist(),
            "low": (mean - half).clip(0).round(1).tolist(),
            "high": (mean + half).round(1).tolist(),
        }
    return found


def _burst_ns(trace: Trace, scenes: Mapping[int, Scene]) -> float:
    """Return the normal gap between bursts: half of the total time lies in gaps of at least this length."""
    gaps = []
    for scene in scenes.values():
        since = trace.received.t_ns - scene.fault.middle_ns
        gaps.append(np.diff(since[(since >= -_BEFORE_NS) & (since < 0)]))
    every = np.sort(np.concatenate([g for g in gaps if len(g)] or [np.zeros(1, np.int64)]))
    held = np.cumsum(every)
    return float(every[int(np.searchsorted(held, held[-1] / 2))]) if held[-1] > 0 else 0.0


def _paths(trace: Trace, scene: Scene, log: EventLog) -> dict[str, Any]:
    """Return the EVs used in a trial: packets by path and time bin, times of retirement, and broken paths."""
    paths, zero = trace.paths, scene.fault.middle_ns
    order = sorted(range(len(paths)), key=lambda index: paths[index].ev)
    row_of = np.empty(len(paths), np.int64)
    row_of[order] = np.arange(len(paths))
    healed = scene.span.repair_before
    back = [event.t_ns for event in log.between("EvRestored", healed, scene.span.end)]
    last = max([healed, *back]) - zero
    low, high = zero - int(last * 0.2), zero + int(last * 1.15)
    sent = trace.sent
    here = (sent.t_ns >= low) & (sent.t_ns < high) & (sent.path >= 0)
    edges = np.linspace(low, high, _COLUMNS + 1)

    def counts(mask: npt.NDArray[np.bool_]) -> list[list[int]]:
        """Return the bins with packets, as [row, column, packets]."""
        chosen = here & mask
        table, _, _ = np.histogram2d(
            row_of[sent.path[chosen]], sent.t_ns[chosen], bins=(np.arange(len(paths) + 1), edges)
        )
        return [[int(r), int(c), int(table[r, c])] for r, c in np.argwhere(table > 0)]

    by_ev = {path.ev: int(row_of[index]) for index, path in enumerate(paths)}
    retired = [
        [by_ev[ev], round((start - zero) / 1e6, 4), round((end - zero) / 1e6, 4)]
        for ev, start, end in _retired(log, low, high)
        if ev in by_ev
    ]
    return {
        "from_ms": (low - zero) / 1e6,
        "to_ms": (high - zero) / 1e6,
        "repaired_ms": (healed - zero) / 1e6,
        "columns": _COLUMNS,
        "rows": [
            {"plane": paths[i].plane, "t1": paths[i].t1, "cut": scene.fault.breaks(paths[i])} for i in order
        ],
        "sent": counts(~sent.rtx & ~sent.lost),
        "lost": counts(sent.lost),
        "resent": counts(sent.rtx),
        "retired": retired,
    }


def _retired(log: EventLog, start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
    """Return (EV, from, to) for each time in which an EV was retired, from ``start_ns`` to ``end_ns``."""
    since: dict[int, int] = {}
    found = []
    for event in log.events:
        ev = event.int_field("ev")
        if ev is None:
            continue
        if event.name == "EvRetired":
            since.setdefault(ev, event.t_ns)
        elif event.name == "EvRestored" and ev in since:
            found.append((ev, since.pop(ev), event.t_ns))
    found += [(ev, t_ns, end_ns) for ev, t_ns in since.items()]
    return [(ev, max(a, start_ns), min(b, end_ns)) for ev, a, b in found if a < end_ns and b > start_ns]


def _spread(trace: Trace, scenes: Sequence[Scene]) -> dict[str, Any]:
    """Return by how much packets were reordered, and how long packets took with and without a fault."""
    extents = reorder_extents(trace)
    sent_ns, took_ns = delivery_times_ns(trace)
    during = np.zeros(len(sent_ns), bool)
    for scene in scenes:
        during |= (sent_ns >= scene.fault.t_before_ns) & (sent_ns < scene.span.repair_before)
    return {
        "packets": len(extents),
        "out_of_order": float(f"{np.mean(extents > 0):.6g}") if len(extents) else 0.0,
        "reordering": _curve(*ccdf(extents)),
        "delivery_us": {
            name: _curve(*ccdf(took_ns[mask] / 1e3))
            for name, mask in (("no_fault", ~during), ("fault", during))
            if mask.any()
        },
    }


def _curve(x: Floats, share: Floats) -> dict[str, list[float]]:
    """Return a curve of at most `_POINTS` points. Most of the points are in the tail."""
    if len(x) > _POINTS:
        # Choose points at even distances of log(share): the few points of the tail matter most.
        wanted = np.geomspace(1, share[-1], _POINTS)
        chosen = np.unique(
            len(share) - 1 - np.searchsorted(share[::-1], wanted, side="left").clip(0, len(share) - 1)
        )
        x, share = x[chosen], share[chosen]
    return {"x": [float(f"{v:.6g}") for v in x], "share": [float(f"{v:.6g}") for v in share]}


def reorder_extents(trace: Trace) -> IntArray:
    """Return, for each packet's first arrival, by how many PSNs it came too late.

    The result is the highest PSN of the flow so far, minus the PSN of the packet. It is 0 if the packet came
    in order (the reordering extent of RFC 4737 section 4.2.1, on sequence numbers). Shape (number of
    delivered packets,).
    """
    received = trace.received
    extents: list[IntArray] = [np.empty(0, np.int64)]
    for flow in np.unique(received.flow):
        psn = received.psn[received.first & (received.flow == flow)]
        if len(psn):
            extents.append(np.maximum.accumulate(psn) - psn)
    return np.concatenate(extents)


def delivery_times_ns(trace: Trace) -> tuple[IntArray, IntArray]:
    """Return how long each packet took from its first transmission until a whole copy arrived.

    Two arrays of the same shape are returned: send times and durations. Lost packets are left out.
    """
    sent = trace.sent
    chosen = ~sent.rtx & (sent.first_ns != NEVER)
    return sent.t_ns[chosen], sent.first_ns[chosen] - sent.t_ns[chosen]


def ccdf(values: npt.NDArray[np.int64] | Floats) -> tuple[Floats, Floats]:
    """Return the distinct values, and for each of them the share of all values that are at least as large."""
    x, counts = np.unique(values, return_counts=True)
    at_least = np.cumsum(counts[::-1])[::-1] / max(len(values), 1)
    return x.astype(np.float64), at_least
