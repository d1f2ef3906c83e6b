"""Readings of a result: values by repetition, rates and losses over time, events of paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.result.statistics import Interval, mean_interval

Floats = npt.NDArray[np.float64]
Result = Mapping[str, Any]
Window = tuple[float, float]
"""Begin and end, us since the start of the measurement."""


def transport_of(result: Result, name: str) -> Mapping[str, Any]:
    """Return a transport's part of the result; empty if the run does not have it."""
    found: Mapping[str, Any] = result["transports"].get(name, {})
    return found


def samples(result: Result, transport: str) -> list[Mapping[str, Any]]:
    """Return the repetitions of a transport that ended with sound data."""
    found = transport_of(result, transport).get("samples", ())
    return [s for s in found if s.get("failure") is None and s.get("integrity", "ok") == "ok"]


def failures(result: Result, transport: str) -> int:
    """Return how many repetitions of a transport did not end, for instance as a queue pair failed."""
    return sum(s.get("failure") is not None for s in transport_of(result, transport).get("samples", ()))


def total_of(result: Result, transport: str, counter: str) -> int | None:
    """Return a counter of all repetitions of a transport together; None if one did not count it."""
    counts = [s.get("counters", {}).get(counter) for s in samples(result, transport)]
    return None if not counts or None in counts else sum(counts)


def by_repetition(
    result: Result, transport: str, metric: str, of: Callable[[Any], Any] = np.mean
) -> list[float]:
    """Return one value of a metric for each repetition that has it: the mean, or the result of ``of``."""
    rows = (s["metrics"].get(metric) for s in samples(result, transport))
    return [float(of(values)) for values in rows if values]


def pooled(result: Result, transport: str, metric: str) -> list[float]:
    """Return the values of a metric of all repetitions together."""
    return [v for s in samples(result, transport) for v in s["metrics"].get(metric, ())]


def sizes_of(result: Result, transport: str, metric: str) -> list[str]:
    """Return the sizes that a metric is swept over, in the order of the sweep."""
    names = dict.fromkeys(name for s in samples(result, transport) for name in s["metrics"])
    return [size for name in names for base, _, size in (name.partition("@"),) if base == metric and size]


def flows(result: Result, transport: str) -> list[list[float]]:
    """Return the rates of every flow, Mbit/s, in the order of the placement, for each repetition."""
    rows = (s["metrics"].get("flow_mbps") for s in samples(result, transport))
    return [list(row) for row in rows if row]


class Series:
    """Deliveries and losses in one repetition; times are us since the start of the measurement."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.repetition: int = data.get("repetition", 0)
        self.bin_us = float(data["bin_us"])
        self._starts = data["start_us"] + np.arange(len(data["bytes"])) * self.bin_us
        self._edges = np.append(self._starts, self._starts[-1] + self.bin_us) if len(self._starts) else None
        self._sums = np.append(0.0, np.cumsum(np.asarray(data["bytes"], dtype=np.float64)))
        self._lost = np.asarray(data["lost"])

    @property
    def end_us(self) -> float:
        """The end of the last bin."""
        return float(self._edges[-1]) if self._edges is not None else 0.0

    def bytes_in(self, window: Window) -> float:
        """Return the bytes delivered in a window; inside a bin they are assumed to come evenly."""
        if self._edges is None:
            return 0.0
        begin, end = np.interp(window, self._edges, self._sums)
        return float(end - begin)

    def rate_mbps(self, window: Window) -> float:
        """Return the mean rate in a window, Mbit/s."""
        begin, end = window
        return self.bytes_in(window) * 8 / (end - begin) if end > begin else 0.0

    def lost_in(self, window: Window) -> int:
        """Return the packets declared lost in a window."""
        return int(self._lost[(self._starts >= window[0]) & (self._starts < window[1])].sum())

    def rates_mbps(self, window: Window, width_us: float) -> Floats:
        """Return the rates in whole bins of ``width_us`` from the window's beginning on, Mbit/s."""
        begin, end = window
        if self._edges is None or end - begin < width_us:
            return np.zeros(0)
        edges = begin + np.arange(int((end - begin) / width_us + 1e-9) + 1) * width_us
        rates: Floats = np.diff(np.interp(edges, self._edges, self._sums)) * 8 / width_us
        return rates


def series_of(result: Result, transport: str) -> list[Series]:
    """Return the series of each repetition of a transport."""
    return [Series(data) for data in transport_of(result, transport).get("series", ())]


def duration_us(result: Result) -> float:
    """Return how long the workload's measurement lasts, us; of work without an end, the shortest series."""
    asked = result["parameters"]["workload"].get("duration_ns")
    if asked:
        return float(asked) / 1e3
    ends = [s.end_us for name in result["transports"] for s in series_of(result, name)]
    return min(ends, default=0.0)


def path_events(result: Result, transport: str, kind: str) -> Iterator[tuple[int, Sequence[float]]]:
    """Yield the events of a kind of all repetitions: the repetition, and time (us), rank, queue pair, EV."""
    for found in transport_of(result, transport).get("path_events", ()):
        for row in found[kind]:
            yield found["repetition"], row


def events_complete(result: Result, transport: str) -> bool:
    """Return True if the result has the events of every repetition, and all of them."""
    found = transport_of(result, transport).get("path_events", ())
    return bool(found) and not any(entry["left_out"] for entry in found)


def trials_of(result: Result, transport: str) -> list[Mapping[str, Any]]:
    """Return the faults of a transport that were measured."""
    return [trial for trial in result.get("trials", ()) if trial["transport"] == transport]


def times_us(result: Result, transport: str, name: str) -> list[float]:
    """Return one of the times of all faults that have it, such as ``recovered_us``."""
    return [float(trial[name]) for trial in trials_of(result, transport) if trial.get(name) is not None]


def mean_of(values: Sequence[float | None]) -> Interval | None:
    """Return the mean of the repetitions' values with its interval; None if a repetition has none."""
    return None if None in values else mean_interval([v for v in values if v is not None])
