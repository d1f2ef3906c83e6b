"""Goodput of a stream that agents carry: payload from the first mark to the last, by completions or captures.

A mark is a completion, or a packet's arrival. The bytes of the first mark were sent before it: the rate is
that of all bytes after it, over the time from it to the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from mrclab.experiments.measure.events import EventLog
from mrclab.experiments.measure.trace import IntArray, Trace

FEWEST_MARKS = 3


def completed_mbps(logs: Mapping[str, EventLog], begin_ns: int, end_ns: int) -> float | None:
    """Return the goodput by receivers' completions with begin <= t < end, Mbit/s; None: too few."""
    events = [event for log in logs.values() for event in log.between("ReceiveCompleted", begin_ns, end_ns)]
    marks = [(event.t_ns, event.int_field("length_bytes") or 0) for event in events]
    return _rate_mbps(marks)


def captured_mbps(traces: Sequence[Trace], begin_ns: int, end_ns: int) -> float | None:
    """Return the goodput by the first whole copies in receivers' captures, as `completed_mbps` counts."""
    marks: list[tuple[int, int]] = []
    for trace in traces:
        received = trace.received
        counted = received.first & (received.t_ns >= begin_ns) & (received.t_ns < end_ns)
        t_ns: IntArray = received.t_ns[counted]
        marks += zip(t_ns.tolist(), received.payload[counted].tolist(), strict=True)
    return _rate_mbps(marks)


def _rate_mbps(marks: Iterable[tuple[int, int]]) -> float | None:
    found = np.array(sorted(marks), np.int64).reshape(-1, 2)
    if len(found) < FEWEST_MARKS or found[-1, 0] == found[0, 0]:
        return None
    return float(found[1:, 1].sum() * 8e3 / (found[-1, 0] - found[0, 0]))
