"""Figure 9a: NIC-T0 links removed one at a time, then returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Check, Verdict, about, all_hold, rate_between, ratio

PAPER = (
    "8 links: 1548, 1349, 1155, 963, 779, 583, 400, ~200 Gbit/s, and back in the same steps; dips under 1 s"
)
PHASE_US = 500_000
SETTLE_US = 200_000
LEFT = (4, 3, 2, 1, 1, 2, 3, 4)  # of four, in every half second of the scenario
TOLERANCE = 0.12


def judge(result: Mapping[str, Any]) -> Verdict:
    """Every phase carries its share of the fault-free rate."""
    return judge_phases(result, "mrc")


def judge_phases(result: Mapping[str, Any], transport: str) -> Verdict:
    """Of half a second each, with ``LEFT`` of four links."""
    usual = rate_between(result, transport, 0, PHASE_US)
    checks: list[Check] = []
    for number, left in enumerate(LEFT[1:], 1):
        if left == LEFT[number - 1]:
            continue
        begin = number * PHASE_US
        rate = rate_between(result, transport, begin + SETTLE_US, begin + PHASE_US)
        asked = f"share of the fault-free rate with {left} of 4 links"
        checks.append(about(asked, ratio(rate, usual), left / 4, TOLERANCE))
    return all_hold(checks)
