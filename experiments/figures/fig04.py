"""Figure 4: losses at the start of a job on a fabric with dead links."""

from __future__ import annotations

from typing import Any

from mrclab.experiments.judging.criteria import at_most, present
from mrclab.experiments.judging.readings import (
    Result,
    duration_us,
    events_complete,
    flows,
    path_events,
    series_of,
    transport_of,
)
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval, rate_ratio_interval

PAPER = (
    "losses a second: 9.2e5 at 3.4 min, 1.5e4 at 4.4, 4.9e3 at 5.9, 1.2e3 to 2e3 from 10 min on; fewer than "
    "5 packets lost per queue pair in the first minute"
)
FALL = 9.2e5 / 2e3
FALL_SOURCE = "paper: from 9.2e5 losses a second to 2e3 at most, 460 times fewer"
PER_QP = 5
PER_QP_SOURCE = "paper, section 2.4: fewer than 5 packets lost per queue pair in the first minute"


def judge(result: Result) -> Verdict:
    """Check how far losses fall, how many there are per queue pair, and that the links stay dead."""
    end = duration_us(result)
    first, last, blind = (
        _lost(result, name, window)
        for name, window in (
            ("mrc", (0.0, end / 3)),
            ("mrc", (end * 2 / 3, end)),
            ("oblivious", (end * 2 / 3, end)),
        )
    )
    fall = rate_ratio_interval(last, first) if first else None
    return all_hold(
        [
            present(
                "losses without EV health, in the last third", blind, "control: the links are still dead"
            ),
            at_most("losses of the last third over those of the first", fall, 1 / FALL, FALL_SOURCE),
            _per_queue_pair(result),
        ]
    )


def _lost(result: Result, transport: str, window: tuple[float, float]) -> int:
    return sum(series.lost_in(window) for series in series_of(result, transport))


def _per_queue_pair(result: Result) -> Check:
    asked = "packets lost per queue pair"
    if not events_complete(result, "mrc"):
        return Check(asked, "the result lacks the events", None, PER_QP_SOURCE)
    options: dict[str, Any] = transport_of(result, "mrc").get("options", {})
    counts = dict.fromkeys((e["repetition"] for e in transport_of(result, "mrc")["path_events"]), 0)
    for repetition, _ in path_events(result, "mrc", "lost"):
        counts[repetition] += 1
    rates = flows(result, "mrc")
    pairs = len(rates[0]) * int(options.get("qps", 1)) if rates else 0
    found = mean_interval([count / pairs for count in counts.values()]) if pairs else None
    return at_most(asked, found, PER_QP, PER_QP_SOURCE)
