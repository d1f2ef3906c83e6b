"""Figure 9d: eight T0-T1 links flap."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_lowest
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "8 T0-T1 links down for 30 s: median 1532, lowest 1471 Gbit/s in bins of 200 ms"
LEAST = 1471 / 1532
SOURCE = "paper: 1471 of 1532 in its lowest 200 ms"


def judge(result: Result) -> Verdict:
    """No bin falls further below the rate before the first fault than the paper's lowest."""
    return all_hold([judge_full(result, "mrc", 1532, 1600), judge_lowest(result, "mrc", LEAST, SOURCE)])
