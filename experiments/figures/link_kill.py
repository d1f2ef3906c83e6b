"""The core claim: a path that fails silently is detected and bypassed within a few tens of microseconds."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.readings import Result, trials_of
from mrclab.experiments.judging.scale import BYPASS_SOURCE, PAPER_TENS_US, bypass_limit_us, rtt_us
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import interval_of

PAPER = (
    "section 2.1: failures are detected and bypassed in a few tens of us; the paper's round trip is 13.1 us"
)
TENS_SOURCE = (
    "paper, section 2.1: tens of us, so below 100 for nine of ten faults; as many round trips if the round "
    "trip is longer than 13.1 us"
)
LEFT_SOURCE = "paper, section 2.1: a failed path is bypassed, so nothing is sent onto it any more"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"


def judge(result: Result) -> Verdict:
    """Check detection and rerouting since the first loss, median and 90th percentile, and the delivery."""
    return all_hold(judge_bypass(result, "mrc"))


def judge_bypass(result: Result, transport: str) -> list[Check]:
    """Return the checks of a transport whose senders bypass failed paths themselves.

    Times count from the first loss: before it nothing can be noticed, and how long it takes a packet to meet
    a silent fault depends on the packet rate alone.
    """
    felt = [trial for trial in trials_of(result, transport) if trial["felt"]]
    round_trip_us = rtt_us(result, transport)
    limits = {
        "median": ("p50", bypass_limit_us(round_trip_us), BYPASS_SOURCE),
        "90th percentile": ("p90", bypass_limit_us(round_trip_us, PAPER_TENS_US), TENS_SOURCE),
    }
    checks = [present("faults that took packets", len(felt), "without one there is nothing to show")]
    for name in ("detected_us", "rerouted_us"):
        waits = [t[name] - t["first_loss_us"] for t in felt if None not in (t[name], t["first_loss_us"])]
        for words, (statistic, limit, source) in limits.items():
            asked = f"{name.removesuffix('_us')} since the first loss, {words}"
            checks.append(at_most(asked, interval_of(waits, statistic), limit, source, " us"))
    never = sum(t["detected_us"] is None or t["recovered_us"] is None for t in felt)
    checks.append(none_of("faults not detected, or not recovered from", never, DELIVERED_SOURCE))
    used = sum(t["rerouted_us"] is None for t in felt)
    checks.append(none_of("faults whose path was used until its repair", used, LEFT_SOURCE))
    return checks
