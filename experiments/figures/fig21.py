"""Figure 21: an incast with a victim flow, without congestion control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.fig18 import judge_incast
from experiments.figures.verdict import Verdict

PAPER = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s; the flows of the incast "
    "55, 49, 48 to 74"
)
SCALE = "there is no PFC here: without DCQCN what does not fit is dropped, and no pause reaches the victim"


def judge(result: Mapping[str, Any]) -> Verdict:
    """MRC with 8 queue pairs, as figure 18 judges it; RoCEv2 is without DCQCN."""
    verdict = judge_incast(result, "mrc-8qp", ["rocev2-1qp", "rocev2-8qp"])
    return Verdict(verdict.checks, notes=(SCALE,))
