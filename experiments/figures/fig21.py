"""Figure 21: an incast with a victim flow, without congestion control."""

from __future__ import annotations

from experiments.figures.fig18 import judge_incast
from experiments.judging.readings import Result
from experiments.judging.verdict import Check, Verdict, all_hold

PAPER = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s; the flows of the incast "
    "55, 49, 48 to 74"
)
NO_PFC = "there is no PFC here: without DCQCN what does not fit is dropped, and no pause reaches the victim"


def judge(result: Result) -> Verdict:
    """MRC with 8 queue pairs, as figure 18 judges it. What PFC does to RoCEv2's victim cannot be shown."""
    pauses = Check("MRC's victim over that of RoCEv2 under PFC", NO_PFC, None, "paper: 389 against 97 and 25")
    return all_hold([*judge_incast(result, "mrc-8qp", {}), pauses])
