"""The headline: time to recover from a silent cut, MRC against routing."""

from __future__ import annotations

from mrclab.experiments.figures.link_kill import judge_bypass
from mrclab.experiments.judging.criteria import at_least, leads
from mrclab.experiments.judging.readings import Result, times_us, transport_of
from mrclab.experiments.judging.scale import BYPASS_SOURCE, bypass_limit_us, rtt_us
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.result.statistics import median_interval, quantile_ratio_interval

PAPER = (
    "a failed path is bypassed within a few tens of us; conventional fabrics take seconds to tens of seconds"
)
SECOND_US = 1e6
SECONDS_SOURCE = "OpenAI's post: conventional fabrics take seconds or even tens of seconds"
LEAD_SOURCE = "a second over the few tens of us, in round trips of this fabric"
LEAD_AT_ALL_SOURCE = "OpenAI's post: MRC reroutes sooner than routing converges; no factor is given for BFD"
HOLD_NS = 10**9
METRIC = "recovered_since_loss_us"
"""Before the first loss nobody can notice a fault; when it comes depends on the packet rate alone."""


def judge(result: Result) -> Verdict:
    """Check MRC's bypass, the seconds of routing with hold timers, and how many times longer routing takes.

    Medians are of the faults that were felt. Timers that a scenario sets itself prove nothing: the criteria
    of a routed transport follow from the paper's times alone.
    """
    checks = judge_bypass(result, "mrc")
    limit_us = bypass_limit_us(rtt_us(result, "mrc"))
    ours = times_us(result, "mrc", METRIC)
    for name in result["transports"]:
        detection_ns = transport_of(result, name).get("detection_ns")
        if detection_ns is None:
            continue
        theirs = times_us(result, name, METRIC)
        lead = quantile_ratio_interval(theirs, ours, 0.5)
        asked = f"recovery of {name} over that of mrc, medians"
        if detection_ns >= HOLD_NS:
            checks.append(
                at_least(
                    f"recovery of {name}, median", median_interval(theirs), SECOND_US, SECONDS_SOURCE, " us"
                )
            )
            checks.append(leads(asked, lead, f"{LEAD_SOURCE} ({BYPASS_SOURCE})", SECOND_US / limit_us))
        else:
            checks.append(leads(asked, lead, LEAD_AT_ALL_SOURCE))
    routed = any(transport_of(result, name).get("detection_ns") for name in result["transports"])
    return all_hold(
        checks if routed else [*checks, Check("routed transports", "none ran", None, LEAD_SOURCE)]
    )
