"""An incast with a victim flow over links that drop, that pause, and that have credits."""

from __future__ import annotations

from mrclab.experiments.figures.fig18 import VICTIM, VICTIM_SOURCE, judge_incast
from mrclab.experiments.judging.criteria import at_least, leads, none_of, present
from mrclab.experiments.judging.readings import Result, flows, mean_of, total_of
from mrclab.experiments.judging.scale import payload_mbps
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import ratio_interval

PAPER = (
    "7:1, victim: MRC with 8 QPs 389, PFC alone with 1 QP 97, with 8 QPs 25 Gbit/s (figure 21); "
    "nothing on credits"
)
HASHED = ("rocev2-pfc", "rocev2-credits-ecmp")
BY_DESTINATION = "rocev2-credits"
NO_DROPS = "theory: headroom, credits"
SHARED = "theory: a link that stops for one flow holds up the others on it"
APART = "theory: the two destinations have different uplinks by their numbers, so no link is shared"


def judge(result: Result) -> Verdict:
    """Nothing is dropped if links stop instead. The victim of hashed flows waits behind others for it; MRC's
    does not, and neither does one whose destination has another path than that of the incast."""
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
