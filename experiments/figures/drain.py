"""Maintenance: a drained T1, which the hosts avoid, is rebooted under load."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import none_of, present, within
from mrclab.experiments.judging.phases import LEVEL_MARGIN, LEVEL_SOURCE, judge_full, judge_lowest, phases_of
from mrclab.experiments.judging.readings import Result, events_complete, mean_of, path_events, series_of
from mrclab.experiments.judging.scale import expected_share, fabric_of, placement_of
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = (
    "a planned reboot of a T1 has no effect (figure 8); in the lowest 200 ms 1508 of 1533 Gbit/s (figure 11)"
)
LEAST = 1508 / 1533
LEAST_SOURCE = "paper, figure 11: 1508 of 1533 in its lowest 200 ms"
NONE_SOURCE = "theory: nothing is sent onto a path that is not used"
CONTROL_SOURCE = "control: the second T1 is rebooted without having been drained"


def judge(result: Result) -> Verdict:
    """Check that the reboot of a drained T1 loses no packet; that of another one later is the control."""
    levels: list[float | None] = []
    windows = {}
    fabric = fabric_of(result, "mrc")
    share = 1.0
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) < 4:
            continue
        usual = series.rate_mbps(phases[0].window)
        levels.append(series.rate_mbps(phases[1].window) / usual if usual else None)
        windows[series.repetition] = (phases[1].window[0], phases[2].window[0], phases[3].window[0])
        placement = placement_of(result, fabric, series.repetition)
        src, dst = (placement.hosts[rank] for rank in placement.pairs[0])
        share = expected_share(fabric, src, dst, phases[1].broken)
    drained = other = 0
    for repetition, row in path_events(result, "mrc", "lost"):
        if repetition in windows:
            first, back, second = windows[repetition]
            drained += first <= row[0] < back
            other += row[0] >= second
    known = events_complete(result, "mrc") and bool(windows)
    asked = "rate while it is away over that before"
    return all_hold(
        [
            present("packets lost to a T1 that was not drained", other, CONTROL_SOURCE),
            none_of("packets lost while the drained T1 was away", drained if known else None, NONE_SOURCE),
            within(asked, mean_of(levels), share, LEVEL_MARGIN, LEVEL_SOURCE),
            judge_full(result, "mrc", 1533, 1600),
            judge_lowest(result, "mrc", LEAST, LEAST_SOURCE),
        ]
    )
