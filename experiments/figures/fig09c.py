"""Figure 9c: T0-T1 links taken away one by one."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_lowest
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "20 T0-T1 links down 1 s apart: median 1534, lowest 1520 Gbit/s in bins of 200 ms"
LEAST = 1520 / 1534
SOURCE = "paper: 1520 of 1534 in its lowest 200 ms"


def judge(result: Result) -> Verdict:
    """No bin falls further below the rate before the first fault than the paper's lowest."""
    return all_hold([judge_full(result, "mrc", 1534, 1600), judge_lowest(result, "mrc", LEAST, SOURCE)])
