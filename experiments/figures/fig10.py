"""Figure 10: a T0 switch fails."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import (
    Verdict,
    about,
    all_hold,
    duration_us,
    rate_between,
    ratio,
    usual_mbps,
)

PAPER = "a T0 fails at 73 s: 1533, one sample of 0, then 1338 Gbit/s, 7/8"
BEFORE_US = 1_000_000
SETTLE_US = 500_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Three of four planes carry on."""
    usual = usual_mbps(result, "mrc", BEFORE_US)
    after = rate_between(result, "mrc", BEFORE_US + SETTLE_US, duration_us(result))
    return all_hold([about("share of the fault-free rate on 3 of 4 planes", ratio(after, usual), 0.75, 0.1)])
