"""The core claim: a path that fails silently is detected and bypassed within a few tens of microseconds."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.readings import Result, trials_of
from mrclab.experiments.judging.scale import BYPASS_SOURCE, bypass_limit_us, rtt_us
from mrclab.experiments.judging.verdict import Check, Verdict, all_hold
from mrclab.experiments.report.statistics import median_interval

PAPER = "section 2.1: failures are detected and bypassed in a few tens of us; 13.1 us are a round trip"
DELIVERED_SOURCE = "theory: a reliable transport delivers all that was lost"


def judge(result: Result) -> Verdict:
    """Check the median detection and rerouting since the first loss, and that everything was delivered."""
    return all_hold(judge_bypass(result, "mrc"))


def judge_bypass(result: Result, transport: str) -> list[Check]:
    """Return the checks of a transport whose senders bypass failed paths themselves.

    Times count from the first loss: before it nothing can be noticed, and how long it takes a packet to meet
    a silent fault depends on the packet rate alone.
    """
    felt = [trial for trial in trials_of(result, transport) if trial["felt"]]
    limit = bypass_limit_us(rtt_us(result, transport))
    checks = [present("faults that took packets", len(felt), "without one there is nothing to show")]
    for name in ("detected_us", "rerouted_us"):
        waits = [t[name] - t["first_loss_us"] for t in felt if None not in (t[name], t["first_loss_us"])]
        asked = f"{name.removesuffix('_us')} since the first loss, median"
        checks.append(at_most(asked, median_interval(waits), limit, BYPASS_SOURCE, " us"))
    never = sum(t["detected_us"] is None or t["recovered_us"] is None for t in felt)
    checks.append(none_of("faults not detected, or not recovered from", never, DELIVERED_SOURCE))
    return checks
