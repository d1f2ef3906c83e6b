"""When a transport noticed each fault and when it had left what that broke; where it cannot be told, why.

Pure: stamps of endpoints and routes in, times out, all CLOCK_MONOTONIC ns and counted from the middle of the
fault's interval. MRC tells by its events: ``detect`` is the first EV of a broken path that is retired,
``switch`` the last packet that was sent onto one, which is lost there and so has its event. Routed fabrics
tell by their routes: the first that changes, and the last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.measure.evidence import RouteChange
from experiments.measure.faults import FaultRecord
from experiments.spec.transports import Transport
from topologies import Fabric

OBLIVIOUS = "not applicable: it retires no path and goes on using broken ones"
NO_ROUTING = "not applicable: it leaves the path to a fabric whose routes never change"
NONE_RETIRED = "no path that the fault broke was retired while it lasted"
STILL_USED = "a path that the fault broke was still in use when it was mended"
NO_CHANGE = "no route changed while the fault lasted"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Noticed:
    """Of one fault; a time is None where its ``reason`` says why."""

    detect_ns: int | None
    switch_ns: int | None
    detect_reason: str | None = None
    switch_reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As it goes into a trial of result.json: times in us, reasons where there are no times."""
        found: dict[str, Any] = {
            "detect_us": None if self.detect_ns is None else self.detect_ns / 1e3,
            "switch_us": None if self.switch_ns is None else self.switch_ns / 1e3,
        }
        reasons = {"detect_reason": self.detect_reason, "switch_reason": self.switch_reason}
        return found | {name: reason for name, reason in reasons.items() if reason is not None}


def noticed(
    transport: Transport,
    fabric: Fabric,
    hosts: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    samples: Sequence[Mapping[str, Ints]],
    changes: Sequence[RouteChange],
    faults: Sequence[FaultRecord],
    end_ns: int,
) -> tuple[Noticed, ...]:
    """Of every fault of a repetition that ended at ``end_ns``, in order.

    ``pairs`` are the ranks that send to one another, by their place in ``hosts`` and ``samples``; the columns
    of a sample are those of ``Channel.event_columns``, each with ``event_`` before its name.
    """
    if transport.kind == "mrc" and not transport.options.get("ev_health", True):
        return _never(faults, OBLIVIOUS)
    if transport.kind == "mrc":
        windows = _windows(faults, end_ns)
        return tuple(_by_events(fabric, hosts, pairs, samples, *window) for window in windows)
    if transport.detection_ns is None:
        return _never(faults, NO_ROUTING)
    return tuple(_by_routes(changes, *window) for window in _windows(faults, end_ns))


def _never(faults: Sequence[FaultRecord], why: str) -> tuple[Noticed, ...]:
    return tuple(Noticed(None, None, why, why) for _ in faults)


def _windows(faults: Sequence[FaultRecord], end_ns: int) -> Iterator[tuple[FaultRecord, int]]:
    """Each fault and when it ends to matter: when it is mended, when the next one comes, or at the end."""
    edges = [*(fault.t_before_ns for fault in faults), end_ns]
    for fault, (_, following_ns) in zip(faults, pairwise(edges), strict=True):
        mended = fault.restore_before_ns
        yield fault, mended if mended is not None else max(following_ns, fault.t_after_ns)


def _by_events(
    fabric: Fabric,
    hosts: Sequence[str],
    pairs: Sequence[tuple[int, int]],
    samples: Sequence[Mapping[str, Ints]],
    fault: FaultRecord,
    until_ns: int,
) -> Noticed:
    detected: list[int] = []
    sent: list[int] = []
    still = False
    for rank, sample in enumerate(samples):
        peers = {hosts[b] for a, b in pairs if a == rank and hosts[b] != hosts[rank]}
        broken = {p.ev for peer in peers for p in fabric.paths(hosts[rank], peer) if fault.breaks(p)}
        if not broken or "event_retired_ns" not in sample:
            continue
        retired = _of(sample, "retired", broken, fault.t_before_ns, until_ns)
        detected += sample["event_retired_ns"][retired].tolist()
        lost = _of(sample, "lost", broken, fault.t_before_ns, np.iinfo(np.int64).max)
        stamps, evs = sample["event_lost_sent_ns"][lost], sample["event_lost_ev"][lost]
        ours = stamps < until_ns
        sent += stamps[ours].tolist()
        still |= not set(evs[ours].tolist()) <= set(sample["event_retired_ev"][retired].tolist())
    if not detected:
        return Noticed(None, None, NONE_RETIRED, NONE_RETIRED)
    detect = max(0, min(detected) - fault.middle_ns)
    if still or not sent:
        return Noticed(detect, None, None, STILL_USED if still else NONE_RETIRED)
    return Noticed(detect, max(0, max(sent) - fault.middle_ns))


def _of(sample: Mapping[str, Ints], what: str, evs: set[int], begin_ns: int, end_ns: int) -> Ints:
    t_ns = sample[f"event_{what}_ns"]
    chosen = (t_ns >= begin_ns) & (t_ns < end_ns) & np.isin(sample[f"event_{what}_ev"], sorted(evs))
    return np.flatnonzero(chosen)


def _by_routes(changes: Sequence[RouteChange], fault: FaultRecord, until_ns: int) -> Noticed:
    during = [change for change in changes if fault.t_before_ns <= change.noticed_ns < until_ns]
    if not during:
        return Noticed(None, None, NO_CHANGE, NO_CHANGE)
    first, last = min(c.noticed_ns for c in during), max(c.done_ns for c in during)
    return Noticed(max(0, first - fault.middle_ns), max(0, last - fault.middle_ns))
