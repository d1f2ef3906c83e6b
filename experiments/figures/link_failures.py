"""Judges of figures 9 and 19: links fail and return, and the rate follows the number of working links.

Figures 9a and 9b: NIC-T0 links fail one by one, or half of these links at the same time. Figures 9c and
9d: T0-T1 links fail one by one, or flap. Figures 19a to 19c: T0-T1 links of one plane fail.
"""

from __future__ import annotations

from mrclab.experiments.judging.phases import judge_full, judge_levels, judge_lowest
from mrclab.experiments.judging.readings import Result
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER_FIG09A = (
    "8 links: 1548, 1349, 1155, 963, 779, 583, 400, ~200 Gbit/s, and back in the same steps; dips under 1 s"
)
DIP = 1 / 14
DIP_SOURCE = "paper: dips of less than 1 s, with 14 s from one change to the next"


def judge_fig09a(result: Result) -> Verdict:
    """Check that each phase's rate fits the number of working links, and that the rate's dips are short."""
    return all_hold([judge_full(result, "mrc", 1548, 1600), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])


PAPER_FIG09B = "4 of 8 links down from 5 s to 17 s: 1535, 762, 1538 Gbit/s"
FIG09B_DIP = 1 / 12
FIG09B_DIP_SOURCE = "paper: dips of less than 1 s (figure 9a), with 12 s from one change to the next"


def judge_fig09b(result: Result) -> Verdict:
    """Check that the rate is half during the fault and full afterwards, and that the dips are short."""
    return all_hold(
        [judge_full(result, "mrc", 1535, 1600), *judge_levels(result, "mrc", FIG09B_DIP, FIG09B_DIP_SOURCE)]
    )


PAPER_FIG09C = "20 T0-T1 links down 1 s apart: median 1534, lowest 1520 Gbit/s in bins of 200 ms"
FIG09C_LEAST = 1520 / 1534
FIG09C_SOURCE = "paper: 1520 of 1534 in its lowest 200 ms"


def judge_fig09c(result: Result) -> Verdict:
    """Check the lowest rate of all time bins, divided by the rate before the faults.

    This ratio must be at least the paper's ratio.
    """
    return all_hold(
        [judge_full(result, "mrc", 1534, 1600), judge_lowest(result, "mrc", FIG09C_LEAST, FIG09C_SOURCE)]
    )


PAPER_FIG09D = "8 T0-T1 links down for 30 s: median 1532, lowest 1471 Gbit/s in bins of 200 ms"
FIG09D_LEAST = 1471 / 1532
FIG09D_SOURCE = "paper: 1471 of 1532 in its lowest 200 ms"


def judge_fig09d(result: Result) -> Verdict:
    """Check the lowest rate of all time bins, divided by the rate before the faults.

    This ratio must be at least the paper's ratio.
    """
    return all_hold(
        [judge_full(result, "mrc", 1532, 1600), judge_lowest(result, "mrc", FIG09D_LEAST, FIG09D_SOURCE)]
    )


PAPER_FIG19A = "three of four 400G links taken away under one flow of a 400G NIC: 383 Gbit/s throughout"
FLAT = 0.99
FLAT_SOURCE = "paper: flat, to the width of a line, 1 %"


def judge_fig19a(result: Result) -> Verdict:
    """Check that the rate is the same in all phases and bins: even one link can carry the flow."""
    return all_hold(
        [
            judge_full(result, "mrc", 383, 400),
            *judge_levels(result, "mrc"),
            judge_lowest(result, "mrc", FLAT, FLAT_SOURCE),
        ]
    )


PAPER_FIG19B = (
    "100G links taken and returned one by one: 383, 286, 191, 97, 191, 286, 381 Gbit/s, with short dips"
)


def judge_fig19b(result: Result) -> Verdict:
    """Check that each phase's rate is the working links' rate, and that dips are as short as in figure 9a."""
    return all_hold([judge_full(result, "mrc", 383, 400), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])


PAPER_FIG19C = "two of four 100G links taken at once and returned: 383, 191, 381 Gbit/s"


def judge_fig19c(result: Result) -> Verdict:
    """Check that the rate is half during the fault and full afterwards, with short dips as in figure 9a."""
    return all_hold([judge_full(result, "mrc", 383, 400), *judge_levels(result, "mrc", DIP, DIP_SOURCE)])
