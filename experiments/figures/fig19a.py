"""Figure 19a: three of four T0-T1 links of one plane taken away, of which one suffices."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_levels, judge_lowest
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "three of four 400G links taken away under one flow of a 400G NIC: 383 Gbit/s throughout"
FLAT = 0.99
FLAT_SOURCE = "paper: flat, to the width of a line, 1 %"


def judge(result: Result) -> Verdict:
    """One link carries the whole flow: no phase and no bin is below the rate with all four."""
    return all_hold(
        [
            judge_full(result, "mrc", 383, 400),
            *judge_levels(result, "mrc"),
            judge_lowest(result, "mrc", FLAT, FLAT_SOURCE),
        ]
    )
