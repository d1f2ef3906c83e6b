"""Figure 5: flaps of T0-T1 links, several a minute, in a training job that goes on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, at_most, median, quantile, ratio

PAPER = "4.2 flaps of T0-T1 links a minute on average, 13 at most, over 250 minutes without measurable effect"


def judge(result: Mapping[str, Any]) -> Verdict:
    """Check that the tail of the step times stays near their median."""
    usual = median(result, "mrc", "step_us")
    return all_hold(
        [
            at_most("90th percentile of step times over the median", _over(result, "p90", usual), 1.25),
            at_most("share of the time that was stalled", median(result, "mrc", "stalled_share"), 0.1),
        ]
    )


def _over(result: Mapping[str, Any], rank: str, usual: float | None) -> float | None:
    return ratio(quantile(result, "mrc", "step_us", rank), usual)
