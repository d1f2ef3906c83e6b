"""Figure 9c: T0-T1 links taken away one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, rate_holds

PAPER = "20 T0-T1 links down 1 s apart: median 1534, lowest 1520 Gbit/s in bins of 200 ms"
BEFORE_US = 500_000
LEAST = 0.9


def judge(result: Mapping[str, Any]) -> Verdict:
    """No bin of 200 ms is much below the rate before the first fault."""
    return all_hold([rate_holds(result, "mrc", BEFORE_US, LEAST)])
