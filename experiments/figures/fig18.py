"""Figure 18: an incast with a victim flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, at_least, evenness, flows, nic_mbps, ratio

PAPER = (
    "7:1, victim: MRC 389, DCQCN with 1 QP 319 (285 to 343), with 10 QPs 361 on average and 62 at worst; "
    "the flows of the incast 55 to 57 each"
)
VICTIM = 0.85
FAIR = 0.6
NO_WORSE = 0.97


def judge(result: Mapping[str, Any]) -> Verdict:
    """MRC's victim gets what its NIC can send, and the flows of the incast share alike."""
    return judge_incast(result, "mrc", ["rocev2"])


def judge_incast(result: Mapping[str, Any], mrc: str, others: list[str]) -> Verdict:
    """Check that MRC's victim has ``VICTIM`` of its NIC and no less than that of each of ``others`` (3 % of
    header more are MRC's), and that the slowest of its incast has ``FAIR`` of the fastest."""
    found = flows(result, mrc)
    victim = found[-1] if found else None
    checks = [
        at_least("MRC's victim over its NIC's links", ratio(victim, nic_mbps(result)), VICTIM),
        at_least("slowest over fastest flow of MRC's incast", evenness(found[:-1]), FAIR),
    ]
    for name in others:
        theirs = flows(result, name)
        asked = f"MRC's victim over that of {name}"
        checks.append(at_least(asked, ratio(victim, theirs[-1] if theirs else None), NO_WORSE))
    return all_hold(checks)
