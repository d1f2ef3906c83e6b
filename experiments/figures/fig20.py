"""Figure 20: a permutation of flows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.figures.verdict import Verdict, all_hold, at_least, evenness, median, ratio

PAPER = "8 flows of 400G NICs: MRC about 390 each; PFC with 1 QP 131 three times, 196 twice, 391 three times"


def judge(result: Mapping[str, Any]) -> Verdict:
    """MRC's slowest flow is near its fastest, and nearer than RoCEv2's is."""
    mrc, roce = least_even(result, "mrc"), least_even(result, "rocev2")
    return all_hold(
        [
            at_least("slowest over fastest flow of MRC", mrc, 0.8),
            at_least("that, over RoCEv2's", ratio(mrc, roce), 1.0),
            at_least("goodput of MRC over RoCEv2's", _goodput(result), 1.0),
        ]
    )


def least_even(result: Mapping[str, Any], transport: str) -> float | None:
    """Return the slowest flow over the fastest, at the repetition where that is least."""
    samples = result["transports"].get(transport, {}).get("samples", ())
    found = [evenness(sample["metrics"].get("flow_mbps", ())) for sample in samples]
    return min((f for f in found if f is not None), default=None)


def _goodput(result: Mapping[str, Any]) -> float | None:
    return ratio(median(result, "mrc", "goodput_mbps"), median(result, "rocev2", "goodput_mbps"))
