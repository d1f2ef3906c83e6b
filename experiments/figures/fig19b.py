"""Figure 19b: T0-T1 links of one plane taken away and returned one at a time."""

from __future__ import annotations

from mrclab.experiments.figures.fig09a import DIP, DIP_SOURCE
from mrclab.experiments.judging.phases import judge_full, judge_levels
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "100G links taken and returned one by one: 383, 286, 191, 97, 191, 286, 381 Gbit/s, with short dips"


def judge(result: Result) -> Verdict:
    """Every phase carries its share, and its dip is as short as those of figure 9a."""
    return all_hold([judge_full(result, "mrc", 383, 400), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])
