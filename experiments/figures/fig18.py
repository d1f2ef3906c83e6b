"""Figure 18: an incast with a victim flow."""

from __future__ import annotations

from collections.abc import Mapping

from mrclab.experiments.figures.fig20 import COLLIDED
from mrclab.experiments.judging.criteria import at_least, leads
from mrclab.experiments.judging.readings import Result, flows, mean_of, transport_of
from mrclab.experiments.judging.scale import payload_mbps
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = (
    "7:1, victim: MRC 389, DCQCN with 1 QP 319 (285 to 343), with 10 QPs 361 on average and 62 at worst; "
    "the flows of the incast 55 to 57 each"
)
VICTIM = 389 / 392
VICTIM_SOURCE = "paper: 389 of the 392 Gbit/s of the best flow on these NICs (figure 20)"
FAIR = 55 / 56
FAIR_SOURCE = "paper: the flows of MRC's incast have 55 to 56 Gbit/s each"
DCQCN = {"rocev2": 319.0, "rocev2-10qp": 361.0}
"""The mean rate of RoCEv2's victim, Gbit/s, with 1 and with 10 queue pairs."""
DRAW_SOURCE = "in repetitions whose hash has the victim share a link, as the paper's one draw does"


def judge(result: Result) -> Verdict:
    """MRC's victim gets its NIC's full rate and leads RoCEv2's, and the flows of the incast share alike."""
    return all_hold(judge_incast(result, "mrc", DCQCN))


def judge_incast(result: Result, mrc: str, others: Mapping[str, float]) -> list[Check]:
    """Check MRC's victim (the last flow), its lead over that of ``others``, by the paper's value of each, and
    the slowest over the fastest flow of its incast.

    Under PFC a victim of one queue pair is alone on its links or held up, as its hash falls. The paper shows
    one draw, in which it is held up; so only such repetitions are compared.
    """
    found = flows(result, mrc)
    victims = [rates[-1] for rates in found]
    whole = payload_mbps(result, mrc)
    fairness = mean_of([min(r[:-1]) / max(r[:-1]) if len(r) > 2 and max(r[:-1]) else None for r in found])
    victim = mean_of([v / whole for v in victims])
    checks = [
        at_least("MRC's victim over its links' capacity", victim, VICTIM, VICTIM_SOURCE),
        at_least("slowest over fastest flow of MRC's incast", fairness, FAIR, FAIR_SOURCE),
    ]
    for name, gbps in others.items():
        theirs = [rates[-1] for rates in flows(result, name)]
        source = f"paper: 389 against {gbps:g}"
        if one_path_under_pfc(result, name):
            theirs = [rate for rate in theirs if rate < COLLIDED * whole]
            source += f"; {DRAW_SOURCE}"
        lead = ratio_interval(victims, theirs)
        checks.append(leads(f"MRC's victim over that of {name}", lead, source, 389 / gbps))
    return checks


def one_path_under_pfc(result: Result, name: str) -> bool:
    """Return True if a transport has one queue pair, on links with PFC."""
    found = transport_of(result, name)
    return found.get("lossless") == "pfc" and found.get("options", {}).get("qps", 1) == 1
