"""Figure 9b: half of the NIC-T0 links down at once."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_levels
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "4 of 8 links down from 5 s to 17 s: 1535, 762, 1538 Gbit/s"
DIP = 1 / 12
DIP_SOURCE = "paper: dips of less than 1 s (figure 9a), with 12 s from one change to the next"


def judge(result: Result) -> Verdict:
    """Half in the middle, all of it behind, and little is missing at the changes."""
    return all_hold([judge_full(result, "mrc", 1535, 1600), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])
