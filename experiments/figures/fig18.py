"""Figures 18 and 21: an incast with a victim flow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from experiments.figures.verdict import Verdict, all_hold, at_least, ratio

PAPER = (
    "7:1, victim: MRC 389, DCQCN with 1 QP 319, PFC alone 97 Gbit/s; the flows of the incast 55 to 57 each"
)


def judge(result: Mapping[str, Any]) -> Verdict:
    """MRC's victim gets what its sender has left, and the flows of the incast share alike."""
    mrc = flows(result, "mrc")
    roce = flows(result, "rocev2")
    return all_hold(
        [
            at_least("MRC's victim over RoCEv2's", ratio(mrc[-1], roce[-1]) if mrc and roce else None, 1.0),
            at_least("slowest over fastest flow of MRC's incast", _fairness(mrc), 0.6),
        ]
    )


def flows(result: Mapping[str, Any], transport: str) -> list[float]:
    """The median rate of every flow over the repetitions, the victim's last."""
    samples = result["transports"].get(transport, {}).get("samples", ())
    rows = [s["metrics"]["flow_mbps"] for s in samples if "flow_mbps" in s["metrics"]]
    return [float(v) for v in np.median(np.array(rows), axis=0)] if rows else []


def _fairness(rates: list[float]) -> float | None:
    return ratio(min(rates[:-1]), max(rates[:-1])) if len(rates) > 1 else None
