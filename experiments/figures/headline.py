"""The headline: time to be whole again after a silent cut, MRC against what routing takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Check, Verdict, all_hold, at_least, median, ratio

PAPER = (
    "a failed path is bypassed within a few tens of us; conventional fabrics take seconds to tens of seconds"
)
ROUTED = {"bfd": 100, "frr-bfd": 100, "bgp-hold": 1000, "frr-hold": 1000}
"""How many times longer than MRC each must take."""


def judge(result: Mapping[str, Any]) -> Verdict:
    """MRC's median against the median of each routed transport."""
    mrc = median(result, "mrc", "whole_us")
    checks: list[Check] = []
    for name, times in ROUTED.items():
        if name in result["transports"]:
            other = ratio(median(result, name, "whole_us"), mrc)
            checks.append(at_least(f"time until whole of {name} over that of mrc", other, times, " times"))
    return all_hold(checks)
