"""Figure 5: flaps of T0-T1 links, several a minute, in a training job that goes on."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most, like_control, present
from mrclab.experiments.judging.readings import Result, by_repetition, pooled, trials_of
from mrclab.experiments.judging.scale import BYPASS_SOURCE, bypass_limit_us, rtt_us
from mrclab.experiments.judging.verdict import Verdict, all_hold
from mrclab.experiments.result.statistics import mean_interval, quantile_ratio_interval, ratio_interval

PAPER = "4.2 flaps of T0-T1 links a minute on average, 13 at most, over 250 minutes without measurable effect"
UNMEASURABLE = 1.01
SOURCE = "paper: no measurable effect, and its throughput varies by 1 % without any (1520 of 1534, figure 9c)"


def judge(result: Result) -> Verdict:
    """Compare steps with those of a control without flaps: their mean, 99th percentile and longest.

    In the mean nothing may show. A single step may wait for a path to be bypassed.
    """
    control = by_repetition(result, "control", "step_us")
    usual = mean_interval(control)
    one_step = 1.0 + (bypass_limit_us(rtt_us(result, "mrc")) / usual.value if usual else 0.0)
    p99 = quantile_ratio_interval(
        pooled(result, "mrc", "step_us"), pooled(result, "control", "step_us"), 0.99
    )
    longest = ratio_interval(
        by_repetition(result, "mrc", "step_us", max), by_repetition(result, "control", "step_us", max)
    )
    mean = ratio_interval(by_repetition(result, "mrc", "step_us"), control)
    felt = sum(trial["felt"] is True for trial in trials_of(result, "mrc"))
    return all_hold(
        [
            present("flaps that took packets", felt, "without one there is nothing to show"),
            like_control("mean step over that without flaps", mean, UNMEASURABLE, SOURCE),
            at_most("99th percentile of steps over that without flaps", p99, one_step, BYPASS_SOURCE),
            at_most("longest step over that without flaps", longest, one_step, BYPASS_SOURCE),
        ]
    )
