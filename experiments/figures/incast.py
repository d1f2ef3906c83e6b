"""Judges of incasts (figures 18, 21, 22) and lossless links. A victim is a flow outside the incast."""

from __future__ import annotations

from collections.abc import Mapping

from mrclab.experiments.figures.goodput_and_latency import COLLIDED
from mrclab.experiments.judging.criteria import at_least, at_most, leads, none_of, present
from mrclab.experiments.judging.readings import Result, by_repetition, flows, mean_of, total_of, transport_of
from mrclab.experiments.judging.scale import payload_mbps
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER_FIG18 = (
    "7:1, victim: MRC 389, DCQCN with 1 QP 319 (285 to 343), with 10 QPs 361 on average and 62 at worst; "
    "the flows of the incast 55 to 57 each"
)
VICTIM = 389 / 392
VICTIM_SOURCE = "paper: 389 of the 392 Gbit/s of the best flow on these NICs (figure 20)"
FAIR = 55 / 56
FAIR_SOURCE = "paper: the flows of MRC's incast have 55 to 56 Gbit/s each"
DCQCN = {"rocev2": 319.0, "rocev2-10qp": 361.0}
"""The paper's mean rate of RoCEv2's victim flow, Gbit/s, with 1 and with 10 queue pairs."""
DRAW_SOURCE = "in repetitions whose hash has the victim share a link, as the paper's one draw does"


def judge_fig18(result: Result) -> Verdict:
    """Check that MRC's victim flow has the rate of its NIC and is faster than RoCEv2's victim flow.

    Check also that the flows of the incast have similar rates.
    """
    return all_hold(judge_incast(result, "mrc", DCQCN))


def judge_incast(result: Result, mrc: str, others: Mapping[str, float]) -> list[Check]:
    """Check the rate of MRC's victim (the last flow), its ratio to other victims' rates, and the fairness.

    ``others`` gives the paper's rate of each other transport's victim. Under PFC, a hash decides whether a
    victim with one queue pair shares links with the incast. In the paper, the victim shares links. So
    repetitions without shared links are skipped.
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
    """Return True if a transport has one queue pair to each peer and its links have PFC."""
    found = transport_of(result, name)
    return found.get("lossless") == "pfc" and found.get("options", {}).get("qps", 1) == 1


PAPER_FIG21 = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s; the flows of the incast "
    "55, 49, 48 to 74"
)
NO_PFC = "there is no PFC here: without DCQCN what does not fit is dropped, and no pause reaches the victim"
VICTIMS = {"rocev2-1qp": 97.0, "rocev2-8qp": 25.0}


def judge_fig21(result: Result) -> Verdict:
    """Check MRC with 8 queue pairs: the victim's rate, the fairness, and the ratio to RoCEv2 under PFC.

    The victim is the flow that is not part of the incast. The ratio is the rate of MRC's victim divided by
    the rate of RoCEv2's victim. Only the simulator has PFC. On other targets, the ratio is "not shown".
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


PAPER_LOSSLESS = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s (figure 21); "
    "nothing on credits"
)
HASHED = ("rocev2-pfc", "rocev2-credits-ecmp")
BY_DESTINATION = "rocev2-credits"
NO_DROPS = "theory: headroom, credits"
SHARED = "theory: a link that stops for one flow holds up the others on it"
APART = "theory: the two destinations have different uplinks by their numbers, so no link is shared"


def judge_lossless(result: Result) -> Verdict:
    """Check that lossless links drop nothing, and slow down only victims that share links with the incast."""
    checks = judge_incast(result, "mrc", {})
    victims = [rates[-1] for rates in flows(result, "mrc")]
    for name in (*HASHED, BY_DESTINATION):
        dropped = total_of(result, name, "frames_dropped")
        checks.append(none_of(f"frames of {name} that were dropped", dropped, NO_DROPS))
    for name in HASHED:
        blocked = total_of(result, name, "blocked_packets")
        words = f"packets of {name} that waited, and then found their port free"
        checks.append(present(words, blocked or 0, SHARED))
        lead = ratio_interval(victims, [rates[-1] for rates in flows(result, name)])
        checks.append(leads(f"MRC's victim over that of {name}", lead, SHARED))
    whole = payload_mbps(result, BY_DESTINATION)
    apart = mean_of([rates[-1] / whole for rates in flows(result, BY_DESTINATION)])
    source = f"{APART}; {VICTIM_SOURCE}"
    checks.append(at_least(f"victim of {BY_DESTINATION} over its links' capacity", apart, VICTIM, source))
    return all_hold(checks)


PAPER_FIG22 = (
    "15:1: with DCQCN's defaults the queue is longer than 20 MB, and PFC begins at about 10 flows; "
    "aggressive, at most 4 MB at a cost of 10 % of the throughput; most aggressive, 4 to 5.5 MB at 20 %"
)
DEFAULT = "default"
QUEUES = {"aggressive": 4.0 / 20.0, "most-aggressive": 5.5 / 20.0}
"""The paper's longest queue with each DCQCN setting, divided by the longest queue with the defaults."""
KEPT = {"aggressive": 0.9, "most-aggressive": 0.8}
"""The paper's throughput with each DCQCN setting, divided by the throughput with the defaults."""


def judge_fig22(result: Result) -> Verdict:
    """Check that PFC stops links under DCQCN's defaults, and that settings for short queues cost goodput."""
    paused = mean_of([float(n) for n in by_repetition(result, DEFAULT, "stop_depth")])
    checks = [
        at_least(
            "links in a row that are paused under DCQCN's defaults",
            paused,
            1.0,
            "paper: PFC from 10 flows on",
        )
    ]
    queues = by_repetition(result, DEFAULT, "deepest_queue_bytes")
    rates = by_repetition(result, DEFAULT, "goodput_mbps")
    for name, part in QUEUES.items():
        queue = ratio_interval(by_repetition(result, name, "deepest_queue_bytes"), queues)
        rate = ratio_interval(by_repetition(result, name, "goodput_mbps"), rates)
        source = f"paper: {20 * part:g} MB against more than 20"
        checks.append(at_most(f"longest queue of {name} over that of the defaults", queue, part, source))
        source = f"paper: {100 * (1 - KEPT[name]):.0f} % less"
        checks.append(at_most(f"throughput of {name} over that of the defaults", rate, KEPT[name], source))
    for name in (DEFAULT, *QUEUES):
        dropped = total_of(result, name, "frames_dropped")
        checks.append(none_of(f"frames of {name} that were dropped", dropped, "theory: PFC with headroom"))
    return all_hold(checks)
