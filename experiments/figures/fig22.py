"""Figure 22: how long a queue DCQCN leaves in an incast over PFC, and the cost of a shorter one."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_least, at_most, none_of
from mrclab.experiments.judging.readings import Result, by_repetition, mean_of, total_of
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = (
    "15:1: with DCQCN's defaults the queue is longer than 20 MB, and PFC begins at about 10 flows; "
    "aggressive, at most 4 MB at a cost of 10 % of the throughput; most aggressive, 4 to 5.5 MB at 20 %"
)
DEFAULT = "default"
QUEUES = {"aggressive": 4.0 / 20.0, "most-aggressive": 5.5 / 20.0}
"""Their longest queue over that of the defaults."""
KEPT = {"aggressive": 0.9, "most-aggressive": 0.8}
"""Their throughput over that of the defaults."""


def judge(result: Result) -> Verdict:
    """DCQCN's defaults leave the incast to PFC; settings that keep the queue short cost throughput."""
    paused = mean_of([float(n) for n in by_repetition(result, DEFAULT, "stop_depth")])
    checks = [
        at_least(
            "links in a row that are paused under DCQCN's defaults",
            paused,
            1.0,
            "paper: PFC from 10 flows on",
        )
    ]
    queues = by_repetition(result, DEFAULT, "deepest_queue_bytes")
    rates = by_repetition(result, DEFAULT, "goodput_mbps")
    for name, part in QUEUES.items():
        queue = ratio_interval(by_repetition(result, name, "deepest_queue_bytes"), queues)
        rate = ratio_interval(by_repetition(result, name, "goodput_mbps"), rates)
        source = f"paper: {20 * part:g} MB against more than 20"
        checks.append(at_most(f"longest queue of {name} over that of the defaults", queue, part, source))
        source = f"paper: {100 * (1 - KEPT[name]):.0f} % less"
        checks.append(at_most(f"throughput of {name} over that of the defaults", rate, KEPT[name], source))
    for name in (DEFAULT, *QUEUES):
        dropped = total_of(result, name, "frames_dropped")
        checks.append(none_of(f"frames of {name} that were dropped", dropped, "theory: PFC with headroom"))
    return all_hold(checks)
