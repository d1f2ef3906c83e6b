"""Figure 11: a T1 switch fails and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import (
    Verdict,
    all_hold,
    at_least,
    duration_us,
    lowest_between,
    ratio,
    usual_mbps,
)

PAPER = "a T1 down from 119 s to 190 s: median 1533, lowest 1508 Gbit/s in bins of 200 ms"
BEFORE_US = 1_000_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """No bin of 200 ms is much below the rate before."""
    usual = usual_mbps(result, "mrc", BEFORE_US)
    lowest = lowest_between(result, "mrc", BEFORE_US, duration_us(result))
    return all_hold([at_least("lowest 200 ms over the fault-free rate", ratio(lowest, usual), 0.9)])
