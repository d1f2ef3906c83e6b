"""Figure 10: a T0 switch fails."""

from __future__ import annotations

from mrclab.experiments.judging.criteria import at_most
from mrclab.experiments.judging.phases import judge_full, judge_levels, phases_of, sample_us
from mrclab.experiments.judging.readings import Result, mean_of, series_of
from mrclab.experiments.judging.verdict import Verdict, all_hold

PAPER = "a T0 fails at 73 s: 1533, one sample of 0, then 1338 Gbit/s, 7/8"
SOURCE = "paper: one sample of 200 ms at 0"


def judge(result: Result) -> Verdict:
    """Check that the planes that are left carry on, after one sample at most in which less arrives."""
    low: list[float | None] = []
    width = sample_us(result)
    for series in series_of(result, "mrc"):
        phases = phases_of(result, "mrc", series.repetition)
        if len(phases) > 1:
            dead = phases[1].window
            usual = series.rate_mbps(((dead[0] + dead[1]) / 2, dead[1]))
            step = width / 20
            low.append(float((series.rates_mbps(dead, step) < usual / 2).sum()) * step / 1e3)
    asked = "time at less than half of the rate that is left"
    dip = at_most(asked, mean_of(low), width / 1e3, SOURCE, " ms")
    return all_hold([judge_full(result, "mrc", 1533, 1600), *judge_levels(result, "mrc"), dip])
