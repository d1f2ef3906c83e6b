"""Figure 9c: T0-T1 links taken away one by one."""

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

PAPER = "20 T0-T1 links down 1 s apart: median 1534, lowest 1520 Gbit/s in bins of 200 ms"
BEFORE_US = 500_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """No bin of 200 ms is much below the rate before the first fault."""
    usual = usual_mbps(result, "mrc", BEFORE_US)
    lowest = lowest_between(result, "mrc", BEFORE_US, duration_us(result))
    return all_hold([at_least("lowest 200 ms over the fault-free rate", ratio(lowest, usual), 0.9)])
