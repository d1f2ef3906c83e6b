"""Figure 9d: eight T0-T1 links flap."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, rate_holds

PAPER = "8 T0-T1 links down for 30 s: median 1532, lowest 1471 Gbit/s in bins of 200 ms"
BEFORE_US = 1_000_000
LEAST = 0.85


def judge(result: Mapping[str, Any]) -> Verdict:
    """No bin of 200 ms is much below the rate before the flap."""
    return all_hold([rate_holds(result, "mrc", BEFORE_US, LEAST)])
