"""Figures 12 and 13: an EV whose path drops 20 % is replaced by another of its plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import (
    Verdict,
    all_hold,
    at_most,
    duration_us,
    lost_between,
    rate_holds,
    ratio,
)

PAPER = "20 % loss on a path: its EV inactive at once, one of its plane takes over; 1532, lowest 1515 Gbit/s"
FAULT_US = 1_000_000
LEFT_US = 500_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Throughput holds, and losses end while those of a sender that ignores them go on."""
    end = duration_us(result)
    mrc = lost_between(result, "mrc", FAULT_US + LEFT_US, end)
    oblivious = lost_between(result, "oblivious", FAULT_US + LEFT_US, end)
    return all_hold(
        [
            rate_holds(result, "mrc", FAULT_US, 0.9),
            at_most(
                "losses half a second on, over those of a sender without EV health",
                ratio(mrc, oblivious),
                0.1,
            ),
        ]
    )
