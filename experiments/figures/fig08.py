"""Figure 8: a T1 fails and is rebooted later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import (
    Verdict,
    all_hold,
    at_least,
    at_most,
    duration_us,
    lost_between,
    rate_holds,
    ratio,
)

PAPER = (
    "T1 dead: 0.0014 % of packets sent again in its minute, a quarter of the QPs hit; its reboot: no effect"
)
DEAD_US, BACK_US = 1_000_000, 2_500_000
BLIP_US = 300_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Check that losses come at once, few after, and none with the reboot, and that the rate holds."""
    end = duration_us(result)
    blip = lost_between(result, "mrc", DEAD_US, DEAD_US + BLIP_US)
    later = lost_between(result, "mrc", BACK_US, end)
    return all_hold(
        [
            rate_holds(result, "mrc", DEAD_US, 0.85),
            at_least("packets lost within 0.3 s of its death", blip, 1),
            at_most("losses from its return on, over those of its death", ratio(later, blip), 0.25),
        ]
    )
