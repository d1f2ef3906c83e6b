"""Figure 21: an incast with a victim flow, without congestion control."""

from __future__ import annotations

from mrclab.experiments.figures.fig18 import judge_incast
from mrclab.experiments.judging.criteria import none_of
from mrclab.experiments.judging.readings import Result, total_of, transport_of
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold

PAPER = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s; the flows of the incast "
    "55, 49, 48 to 74"
)
NO_PFC = "there is no PFC here: without DCQCN what does not fit is dropped, and no pause reaches the victim"
VICTIMS = {"rocev2-1qp": 97.0, "rocev2-8qp": 25.0}


def judge(result: Result) -> Verdict:
    """MRC with 8 queue pairs, as figure 18 judges it, and its victim's lead over that of RoCEv2 under PFC.

    Only virtual time has PFC: elsewhere the lead cannot be shown.
    """
    paused = {
        name: gbps for name, gbps in VICTIMS.items() if transport_of(result, name).get("lossless") == "pfc"
    }
    checks = judge_incast(result, "mrc-8qp", paused)
    if not paused:
        source = "paper: 389 against 97 and 25"
        checks.append(Check("MRC's victim over that of RoCEv2 under PFC", NO_PFC, None, source))
    for name in paused:
        dropped = total_of(result, name, "frames_dropped")
        checks.append(none_of(f"frames of {name} that were dropped", dropped, "theory: PFC with headroom"))
    return all_hold(checks)
