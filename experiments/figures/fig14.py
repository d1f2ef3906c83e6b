"""Figure 14: two flows share an EV's path, and marks alone move one of them to another EV of the plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.figures.verdict import (
    Check,
    Verdict,
    about,
    all_hold,
    at_least,
    at_most,
    duration_us,
    lost_between,
    rate_between,
    ratio,
)

PAPER = "the second flow starts at 65 to 69 s: the first moves from EV-A to EV-B of its plane, by ECN alone"
SETTLE_US = 500_000


def judge(result: Mapping[str, Any]) -> Verdict:
    """Check that the first flow's other links carry more from then on, and that both have their rates."""
    workload = result["parameters"]["workload"]
    begin, end = workload["second_at_ns"] / 1e3, duration_us(result)
    asked = (workload["rate_bps"] + workload["second_rate_bps"]) / 1e6
    both = rate_between(result, "mrc", begin + SETTLE_US, end, 100_000)
    losses = lost_between(result, "mrc", 0, end)
    checks: list[Check] = [
        at_least("B's links under MRC, after over before", moved(result, "mrc"), 1.3),
        about("B's links without EV health, after over before", moved(result, "oblivious"), 1.0, 0.15),
        at_least("rate of both flows over what they ask for", ratio(both, asked), 0.9),
        at_most("packets of MRC taken for lost", losses, 5),
    ]
    return all_hold(checks)


def moved(result: Mapping[str, Any], transport: str) -> float | None:
    """Return what links of the first flow alone carry with the second flow, over what they did before."""
    begin = result["parameters"]["workload"]["second_at_ns"] / 1e3
    end = duration_us(result)
    before = _carried(result, transport, 0, begin)
    return ratio(_carried(result, transport, begin + SETTLE_US, end), before)


def _carried(result: Mapping[str, Any], transport: str, begin_us: float, end_us: float) -> float | None:
    """Return the median over repetitions and bins of the bytes of all metered links."""
    found: list[float] = []
    for series in result["transports"].get(transport, {}).get("links", ()):
        total = np.sum(list(series["bytes"].values()), axis=0)
        starts = series["start_us"] + np.arange(len(total)) * series["bin_us"]
        found += total[(starts >= begin_us) & (starts + series["bin_us"] <= end_us)].tolist()
    return float(np.median(found)) if found else None
