"""T1 switches rebooted during training, with MRC and on a conventional fabric."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most, none_of, present
from mrclab.experiments.judging.readings import Result, by_repetition, failures, trials_of
from mrclab.experiments.judging.scale import BYPASS_SOURCE, bypass_limit_us, rtt_us
from mrclab.experiments.judging.stalls import stalls_or_fails
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval, ratio_interval

PAPER = (
    "four T1s rebooted during a training run without co-ordination or effect; conventional fabrics stall for "
    "seconds to tens of seconds, or the job fails"
)
FELT_SOURCE = "without a fault that took packets there is nothing to show"


def judge(result: Result) -> Verdict:
    """MRC's longest step may be longer than the control's by one bypass; elsewhere a step stalls for a second
    at least in every repetition, or the job fails."""
    control = mean_interval(by_repetition(result, "control", "step_us"))
    limit = 1.0 + (bypass_limit_us(rtt_us(result, "mrc")) / control.value if control else 0.0)
    longest = ratio_interval(
        by_repetition(result, "mrc", "step_us", max), by_repetition(result, "control", "step_us", max)
    )
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    checks = [
        present("reboots that took packets of MRC", felt, FELT_SOURCE),
        none_of("jobs that failed with MRC", failures(result, "mrc"), "paper: without effect"),
        at_most("longest step over that without reboots", longest, limit, BYPASS_SOURCE),
    ]
    for name, found in result["transports"].items():
        if found.get("routing") in ("ecmp", "frr"):
            checks.append(stalls_or_fails(result, name))
    return all_hold(checks)
