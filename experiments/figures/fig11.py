"""Figure 11: a T1 switch fails and comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, rate_holds

PAPER = "a T1 down from 119 s to 190 s: median 1533, lowest 1508 Gbit/s in bins of 200 ms"
BEFORE_US = 1_000_000
LEAST = 0.9


def judge(result: Mapping[str, Any]) -> Verdict:
    """No bin of 200 ms is much below the rate before."""
    return all_hold([rate_holds(result, "mrc", BEFORE_US, LEAST)])
