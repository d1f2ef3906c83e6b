"""Verdicts of judges, and the readings of a result that judges share.

Shapes are judged, not absolute values: everything is a ratio to a value of the same run without faults, or
to another transport's, with the tolerance stated in the check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.figures.listing import require_figure
from hosts.options import link_bps
from topologies import build_fabric, load_fabric


@dataclass(frozen=True, slots=True)
class Check:
    """One condition: what is asked, what was found, whether it holds (None: unknown)."""

    asked: str
    found: str
    holds: bool | None

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json."""
        return {"asked": self.asked, "found": self.found, "holds": self.holds}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a claim holds: all checks must. One that is unknown leaves the claim open.

    ``notes`` say why a claim may not hold at this scale; the verdict has them where it does not.
    """

    checks: tuple[Check, ...]
    paper: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def holds(self) -> bool | None:
        """The verdict: True, False, or None where it is unknown."""
        if any(check.holds is False for check in self.checks):
            return False
        return None if not self.checks or any(check.holds is None for check in self.checks) else True

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json: ``because`` is one line of all that was found."""
        failing = [check for check in self.checks if check.holds is not True]
        found = [f"{check.asked}: {check.found}" for check in failing or self.checks]
        because = "; ".join([*found, *(self.notes if self.holds is False else ())])
        return {
            "holds": self.holds,
            "because": because,
            "paper": self.paper,
            "checks": [check.to_dict() for check in self.checks],
        }


def judge(figure: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict of a figure's judge on a result. Raises InputError where there is no such judge."""
    require_figure(figure)
    module = import_module(f"experiments.figures.{figure}")
    verdict: Verdict = module.judge(result)
    return Verdict(verdict.checks, module.PAPER, verdict.notes).to_dict()


def median(result: Mapping[str, Any], transport: str, metric: str) -> float | None:
    """Return the median of a metric over all repetitions; None where the run has none."""
    summary = result["transports"].get(transport, {}).get("summary", {}).get(metric)
    return summary["p50"] if summary else None


def quantile(result: Mapping[str, Any], transport: str, metric: str, rank: str) -> float | None:
    """Return another figure of a metric's summary, such as ``p90``."""
    summary = result["transports"].get(transport, {}).get("summary", {}).get(metric)
    return summary[rank] if summary else None


def at_least(asked: str, value: float | None, limit: float, unit: str = "") -> Check:
    """Check a value that must not be below a limit."""
    found = "not measured" if value is None else f"{value:.3g}{unit} (at least {limit:g}{unit})"
    return Check(asked, found, None if value is None else value >= limit)


def at_most(asked: str, value: float | None, limit: float, unit: str = "") -> Check:
    """Check a value that must not be above a limit."""
    found = "not measured" if value is None else f"{value:.3g}{unit} (at most {limit:g}{unit})"
    return Check(asked, found, None if value is None else value <= limit)


def about(asked: str, value: float | None, wanted: float, tolerance: float) -> Check:
    """Check a value that must be within ``tolerance`` of one that is wanted."""
    found = "not measured" if value is None else f"{value:.3g} ({wanted:.3g} +- {tolerance:g})"
    return Check(asked, found, None if value is None else abs(value - wanted) <= tolerance)


def ratio(a: float | None, b: float | None) -> float | None:
    """Return ``a`` over ``b``; None where that means nothing."""
    return None if a is None or not b else a / b


Floats = npt.NDArray[np.float64]


def rates_mbps(result: Mapping[str, Any], transport: str, bin_us: float) -> list[tuple[Floats, Floats]]:
    """Return, for each repetition, the starts of bins of that width (us from the measurement's start) and the
    rate delivered in each, in Mbit/s. Whole bins only."""
    found = []
    for series in result["transports"][transport]["series"]:
        size = max(1, round(bin_us / series["bin_us"]))
        skip = round(-series["start_us"] / series["bin_us"]) % size
        data = np.asarray(series["bytes"][skip:], dtype=np.float64)
        count = len(data) // size
        rates = data[: count * size].reshape(count, size).sum(axis=1) * 8 / (size * series["bin_us"])
        starts = series["start_us"] + (skip + np.arange(count) * size) * series["bin_us"]
        found.append((starts, rates))
    return found


def rate_between(
    result: Mapping[str, Any], transport: str, begin_us: float, end_us: float, bin_us: float = 20_000
) -> float | None:
    """Return the median rate, Mbit/s, of the bins that lie between two times, over all repetitions."""
    values = [
        rates[(starts >= begin_us) & (starts + bin_us <= end_us)]
        for starts, rates in rates_mbps(result, transport, bin_us)
    ]
    together: Floats = np.concatenate(values) if values else np.zeros(0)
    return float(np.median(together)) if len(together) else None


def lowest_between(
    result: Mapping[str, Any], transport: str, begin_us: float, end_us: float, bin_us: float = 200_000
) -> float | None:
    """Return the lowest rate, Mbit/s, of a bin between two times: the median over the repetitions."""
    lows = []
    for starts, rates in rates_mbps(result, transport, bin_us):
        inside = rates[(starts >= begin_us) & (starts + bin_us <= end_us)]
        if len(inside):
            lows.append(float(inside.min()))
    return float(np.median(lows)) if lows else None


def lost_between(result: Mapping[str, Any], transport: str, begin_us: float, end_us: float) -> float | None:
    """Return the packets taken for lost between two times: the mean over the repetitions."""
    counts = []
    for series in result["transports"].get(transport, {}).get("series", ()):
        lost = np.asarray(series["lost"])
        starts = series["start_us"] + np.arange(len(lost)) * series["bin_us"]
        counts.append(int(lost[(starts >= begin_us) & (starts < end_us)].sum()))
    return float(np.mean(counts)) if counts else None


def duration_us(result: Mapping[str, Any]) -> float:
    """Return how long the workload's measurement lasts, us."""
    return float(result["parameters"]["workload"]["duration_ns"]) / 1e3


def usual_mbps(result: Mapping[str, Any], transport: str, before_us: float) -> float | None:
    """Return the median rate before the first fault."""
    return rate_between(result, transport, 0, before_us)


def rate_holds(result: Mapping[str, Any], transport: str, before_us: float, limit: float) -> Check:
    """Check that no bin of 200 ms after ``before_us`` falls below ``limit`` times the median rate before it.

    The bins are as wide as the paper's. Of several repetitions the median of their lowest counts.
    """
    usual = usual_mbps(result, transport, before_us)
    lowest = lowest_between(result, transport, before_us, duration_us(result))
    return at_least("lowest 200 ms over the fault-free rate", ratio(lowest, usual), limit)


def mean_by_size(result: Mapping[str, Any], transport: str, metric: str) -> dict[str, float]:
    """Return the means of a metric that is swept over sizes, by size, the smallest first."""
    summary = result["transports"].get(transport, {}).get("summary", {})
    found: dict[str, float] = {}
    for name, row in summary.items():
        base, _, size = name.partition("@")
        if base == metric and size and row["mean"] is not None:
            found[size] = row["mean"]
    return found


def nic_mbps(result: Mapping[str, Any]) -> float:
    """Return what a NIC's links carry together, Mbit/s, in the scenario's topology."""
    parameters = result["parameters"]
    text, where = parameters["topology"], parameters["topology_where"]
    fabric = build_fabric(text, where) if where else load_fabric(text)
    return link_bps(fabric, fabric.hosts[0].name) / 1e6


def flows(result: Mapping[str, Any], transport: str) -> list[float]:
    """Return the median rate of every flow over the repetitions, Mbit/s, in the order of the placement."""
    samples = result["transports"].get(transport, {}).get("samples", ())
    rows = [s["metrics"]["flow_mbps"] for s in samples if "flow_mbps" in s["metrics"]]
    return [float(v) for v in np.median(np.array(rows), axis=0)] if rows else []


def evenness(rates: Sequence[float]) -> float | None:
    """Return the slowest flow over the fastest."""
    return ratio(min(rates), max(rates)) if rates else None


def all_hold(checks: Sequence[Check]) -> Verdict:
    """Return a verdict of these checks."""
    return Verdict(tuple(checks))
