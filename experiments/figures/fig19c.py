"""Figure 19c: two T0-T1 links of one plane taken away at once, and returned."""

from __future__ import annotations

from mrclab.experiments.figures.fig09a import DIP, DIP_SOURCE
from mrclab.experiments.judging.phases import judge_full, judge_levels
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "two of four 100G links taken at once and returned: 383, 191, 381 Gbit/s"


def judge(result: Result) -> Verdict:
    """Half is left, then all of it, and the dips are as short as those of figure 9a."""
    return all_hold([judge_full(result, "mrc", 383, 400), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])
