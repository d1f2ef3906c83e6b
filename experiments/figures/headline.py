"""The headline: time to recover from a silent cut, MRC against what routing takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Check, Verdict, all_hold, median, ratio

PAPER = (
    "a failed path is bypassed within a few tens of us; conventional fabrics take seconds to tens of seconds"
)
ROUTED = {"bfd": 100, "frr-bfd": 100, "bgp-hold": 1000, "frr-hold": 1000}
"""How many times longer than MRC each must take."""
METRIC = "recovered_us"


def judge(result: Mapping[str, Any]) -> Verdict:
    """Compare MRC's median recovery with that of each routed transport.

    Medians are of the faults that were felt; the findings say how many were not.
    """
    checks: list[Check] = []
    for name, times in ROUTED.items():
        if name in result["transports"]:
            asked = f"recovery of {name} over that of mrc"
            other = ratio(median(result, name, METRIC), median(result, "mrc", METRIC))
            sizes = f"{_count(result, name)} against {_count(result, 'mrc')}"
            if other is None:
                checks.append(Check(asked, f"not measured: {sizes}", None))
            else:
                found = f"{other:,.3g} times (at least {times:,} times; {sizes})"
                checks.append(Check(asked, found, other >= times))
    return all_hold(checks)


def _count(result: Mapping[str, Any], transport: str) -> str:
    """Return how many faults the median is of, and how many were not felt."""
    row = result["transports"].get(transport, {}).get("summary", {}).get(METRIC) or {}
    not_felt = row.get("not_felt") or 0
    return f"n {row.get('n', 0)}" + (f", {not_felt} not felt" if not_felt else "")
