"""Figure 9b: half of the NIC-T0 links down at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, about, all_hold, rate_between, ratio

PAPER = "4 of 8 links down from 5 s to 17 s: 1535, 762, 1538 Gbit/s"
SECOND = 1_000_000
SETTLE_US = 300_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Half in the middle, all of it behind."""
    usual = rate_between(result, "mrc", 0, SECOND)
    down = rate_between(result, "mrc", SECOND + SETTLE_US, 2 * SECOND)
    back = rate_between(result, "mrc", 2 * SECOND + SETTLE_US, 3 * SECOND)
    return all_hold(
        [
            about("share of the fault-free rate with half of the links", ratio(down, usual), 0.5, 0.1),
            about("share when they are back", ratio(back, usual), 1.0, 0.1),
        ]
    )
