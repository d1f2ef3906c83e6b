"""Read values from a result: metrics of repetitions, rates and losses over time, events of EVs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.result.statistics import Interval, mean_interval

Floats = npt.NDArray[np.float64]
Result = Mapping[str, Any]
Window = tuple[float, float]
"""Beginning and end of a time window, in us since the start of the measurement."""


def transport_of(result: Result, name: str) -> Mapping[str, Any]:
    """Return a transport's part of the result. It is empty if the run does not have this transport."""
    found: Mapping[str, Any] = result["transports"].get(name, {})
    return found


def samples(result: Result, transport: str) -> list[Mapping[str, Any]]:
    """Return a transport's repetitions that did not fail and in which all data arrived unchanged."""
    found = transport_of(result, transport).get("samples", ())
    return [s for s in found if s.get("failure") is None and s.get("integrity", "ok") == "ok"]


def failures(result: Result, transport: str) -> int:
    """Return how many repetitions of a transport failed, for instance because a queue pair failed."""
    return sum(s.get("failure") is not None for s in transport_of(result, transport).get("samples", ()))


def total_of(result: Result, transport: str, counter: str) -> int | None:
    """Return the sum of a counter over all repetitions. Return None if a repetition lacks this counter."""
    counts = [s.get("counters", {}).get(counter) for s in samples(result, transport)]
    return None if not counts or None in counts else sum(counts)


def by_repetition(
    result: Result, transport: str, metric: str, of: Callable[[Any], Any] = np.mean
) -> list[float]:
    """Return one value for each repetition that has the metric: the mean, or the result of ``of``."""
    rows = (s["metrics"].get(metric) for s in samples(result, transport))
    return [float(of(values)) for values in rows if values]


def pooled(result: Result, transport: str, metric: str) -> list[float]:
    """Return all values of a metric in one list, from all repetitions of a transport."""
    return [v for s in samples(result, transport) for v in s["metrics"].get(metric, ())]


def sizes_of(result: Result, transport: str, metric: str) -> list[str]:
    """Return the message sizes for which the metric was measured, in the order of measurement."""
    names = dict.fromkeys(name for s in samples(result, transport) for name in s["metrics"])
    return [size for name in names for base, _, size in (name.partition("@"),) if base == metric and size]


def flows(result: Result, transport: str) -> list[list[float]]:
    """Return for each repetition the rates of its flows, Mbit/s, in the order of the placement's pairs."""
    rows = (s["metrics"].get("flow_mbps") for s in samples(result, transport))
    return [list(row) for row in rows if row]


class Series:
    """Delivered bytes and lost packets of one repetition, in bins of time. Times are in us."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.repetition: int = data.get("repetition", 0)
        self.bin_us = float(data["bin_us"])
        self._starts = data["start_us"] + np.arange(len(data["bytes"])) * self.bin_us
        self._edges = np.append(self._starts, self._starts[-1] + self.bin_us) if len(self._starts) else None
        self._sums = np.append(0.0, np.cumsum(np.asarray(data["bytes"], dtype=np.float64)))
        self._lost = np.asarray(data["lost"])

    @property
    def end_us(self) -> float:
        """The end of the last bin, us."""
        return float(self._edges[-1]) if self._edges is not None else 0.0

    def bytes_in(self, window: Window) -> float:
        """Return the bytes delivered in a window. The rate inside a bin is assumed to be constant."""
        if self._edges is None:
            return 0.0
        begin, end = np.interp(window, self._edges, self._sums)
        return float(end - begin)

    def rate_mbps(self, window: Window) -> float:
        """Return the mean rate in a window, Mbit/s."""
        begin, end = window
        return self.bytes_in(window) * 8 / (end - begin) if end > begin else 0.0

    def lost_in(self, window: Window) -> int:
        """Return the number of packets that the sender declared lost in a window."""
        return int(self._lost[(self._starts >= window[0]) & (self._starts < window[1])].sum())

    def rates_mbps(self, window: Window, width_us: float) -> Floats:
        """Return the rates, Mbit/s, in bins of ``width_us`` from the window's beginning on."""
        begin, end = window
        if self._edges is None or end - begin < width_us:
            return np.zeros(0)
        edges = begin + np.arange(int((end - begin) / width_us + 1e-9) + 1) * width_us
        rates: Floats = np.diff(np.interp(edges, self._edges, self._sums)) * 8 / width_us
        return rates


def series_of(result: Result, transport: str) -> list[Series]:
    """Return the time series of each repetition of a transport."""
    return [Series(data) for data in transport_of(result, transport).get("series", ())]


def duration_us(result: Result) -> float:
    """Return the workload's duration, us. If the workload has no duration, use the shortest time series."""
    asked = result["parameters"]["workload"].get("duration_ns")
    if asked:
        return float(asked) / 1e3
    ends = [s.end_us for name in result["transports"] for s in series_of(result, name)]
    return min(ends, default=0.0)


def path_events(result: Result, transport: str, kind: str) -> Iterator[tuple[int, Sequence[float]]]:
    """Yield all events of a kind: (repetition, (time in us, rank, queue pair, EV))."""
    for found in transport_of(result, transport).get("path_events", ()):
        for row in found[kind]:
            yield found["repetition"], row


def events_complete(result: Result, transport: str) -> bool:
    """Return True if the result has events, and if no repetition has left out events."""
    found = transport_of(result, transport).get("path_events", ())
    return bool(found) and not any(entry["left_out"] for entry in found)


def trials_of(result: Result, transport: str) -> list[Mapping[str, Any]]:
    """Return the trials of a transport: its measured faults."""
    return [trial for trial in result.get("trials", ()) if trial["transport"] == transport]


def times_us(result: Result, transport: str, name: str) -> list[float]:
    """Return the values of a time such as ``recovered_us``, from all faults that have this time."""
    return [float(trial[name]) for trial in trials_of(result, transport) if trial.get(name) is not None]


def mean_of(values: Sequence[float | None]) -> Interval | None:
    """Return the mean of one value per repetition, with its interval. Return None if a value is missing."""
    return None if None in values else mean_interval([v for v in values if v is not None])
