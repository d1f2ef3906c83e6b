"""Figure 4: losses at the start of a job on a fabric with dead links."""

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
    ratio,
)

PAPER = "losses a second: 9.2e5 at 3.4 min, 1.5e4 at 4.4, 4.9e3 at 5.9, 1.2e3 to 2e3 from 10 min on"


def judge(result: Mapping[str, Any]) -> Verdict:
    """Check that few losses are left in the last third, and that a sender without EV health keeps losing."""
    end = duration_us(result)
    first = lost_between(result, "mrc", 0, end / 3)
    last = lost_between(result, "mrc", end * 2 / 3, end)
    blind = lost_between(result, "oblivious", end * 2 / 3, end)
    return all_hold(
        [
            at_least("packets lost in the first third", first, 1),
            at_most("losses of the last third over those of the first", ratio(last, first), 0.2),
            at_most("losses of the last third over those without EV health", ratio(last, blind), 0.2),
        ]
    )
