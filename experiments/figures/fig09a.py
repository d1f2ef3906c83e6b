"""Figure 9a: NIC-T0 links removed one at a time, then returned."""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_levels
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = (
    "8 links: 1548, 1349, 1155, 963, 779, 583, 400, ~200 Gbit/s, and back in the same steps; dips under 1 s"
)
DIP = 1 / 14
DIP_SOURCE = "paper: dips of less than 1 s, with 14 s from one change to the next"


def judge(result: Result) -> Verdict:
    """Every phase carries its share of the fault-free rate, and little is missing at its beginning."""
    return all_hold([judge_full(result, "mrc", 1548, 1600), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])
