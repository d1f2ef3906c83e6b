"""Figures 6 and 7: NIC-T0 links of a few nodes flap; the whole job dips and recovers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, at_least, at_most, rate_between, ratio

PAPER = "50K GPUs: 7.0 to 5.1 Pbit/s (-27 %) for about a minute when one transceiver flaps, then back"
DOWN_US, UP_US = 1_500_000, 3_000_000
SETTLE_US = 300_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Look for a dip while the links are down, and none after."""
    usual = rate_between(result, "mrc", 0, DOWN_US, 100_000)
    down = rate_between(result, "mrc", DOWN_US + SETTLE_US, UP_US, 100_000)
    back = rate_between(result, "mrc", UP_US + SETTLE_US, UP_US + 5 * SETTLE_US, 100_000)
    return all_hold(
        [
            at_most("share of the usual rate while they are down", ratio(down, usual), 0.85),
            at_least("the job goes on: share while they are down", ratio(down, usual), 0.1),
            at_least("share when they are back", ratio(back, usual), 0.85),
        ]
    )
