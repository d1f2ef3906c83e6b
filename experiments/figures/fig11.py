"""Figure 11: a T1 switch fails and comes back."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_lowest
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "a T1 down from 119 s to 190 s: median 1533, lowest 1508 Gbit/s in bins of 200 ms"
LEAST = 1508 / 1533
SOURCE = "paper: 1508 of 1533 in its lowest 200 ms"


def judge(result: Result) -> Verdict:
    """No bin falls further below the rate before the first fault than the paper's lowest."""
    return all_hold([judge_full(result, "mrc", 1533, 1600), judge_lowest(result, "mrc", LEAST, SOURCE)])
