"""Summaries of samples, 95 % intervals of means, ratios, shares and counts, and the size of a difference.

A repetition has many values (messages, steps), and their intervals come from the bootstrap. A run has few
repetitions. For few values, bootstrap intervals are too narrow, so intervals over repetitions come from
Student's t. All random numbers are seeded: equal samples give equal intervals.

This module does not use `scipy.stats`, because that import takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv, stdtrit

CONFIDENCE = 0.95
RESAMPLES = 2000
MIN_FOR_INTERVAL = 6
"""The fewest values for an interval. The range of six values includes the true median in 97 % of samples."""

MAX_FOR_EFFECT = 2000
LARGEST_BATCH = 4_000_000  # at most this many random numbers are in memory at a time

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """The statistics of one metric, with 95 % intervals, which are None for fewer than six values."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None
    p999: float | None = None
    min: float | None = None
    max: float | None = None
    ci95_p50: tuple[float, float] | None = None
    ci95_mean: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the summary in JSON types, for result.json."""
        return asdict(self)


def summarise(values: Sequence[float] | Floats, seed: int = 1) -> Summary:
    """Summarise a sample: percentiles by linear interpolation, intervals by the percentile bootstrap."""
    data = np.asarray(values, dtype=np.float64)
    if not len(data):
        return Summary(0)
    p50, p90, p99, p999 = (_rounded(float(v)) for v in np.percentile(data, (50, 90, 99, 99.9)))
    return Summary(
        n=len(data),
        mean=_rounded(float(data.mean())),
        p50=p50,
        p90=p90,
        p99=p99,
        p999=p999,
        min=_rounded(float(data.min())),
        max=_rounded(float(data.max())),
        ci95_p50=bootstrap(data, "median", seed),
        ci95_mean=bootstrap(data, "mean", seed),
    )


def bootstrap(
    values: Sequence[float] | Floats, of: str = "median", seed: int = 1
) -> tuple[float, float] | None:
    """Return the 95 % interval of the median or the mean, or None for fewer than six values.

    Method: percentile bootstrap. [Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13]
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < MIN_FOR_INTERVAL:
        return None
    return _interval((data,), np.median if of == "median" else np.mean, seed)


def _interval(samples: tuple[Floats, ...], statistic: Callable[..., Any], seed: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    longest = max(len(sample) for sample in samples)
    batch = max(1, min(RESAMPLES, LARGEST_BATCH // longest))
    found: list[Floats] = []
    for start in range(0, RESAMPLES, batch):
        times = min(batch, RESAMPLES - start)
        drawn = [sample[rng.integers(0, len(sample), (times, len(sample)))] for sample in samples]
        found.append(statistic(*drawn, axis=-1))
    low, high = np.quantile(np.concatenate(found), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return _rounded(float(low)), _rounded(float(high))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between sample ``b`` and sample ``a``."""

    ratio: float | None
    """The median of b, divided by the median of a."""
    ci95_ratio: tuple[float, float] | None
    cliffs_delta: float | None
    """Cliff's delta, from -1 (every b is below every a) to 1 (every b is above every a). It assumes no
    distribution (Cliff, Psychological Bulletin 114, 1993). None for fewer than six values."""
    size: str
    """The size of Cliff's delta: `negligible`, `small`, `medium` or `large`, by the usual bounds 0.147, 0.33
    and 0.474. It is `unknown` for fewer than six values."""


def difference(a: Sequence[float] | Floats, b: Sequence[float] | Floats, seed: int = 1) -> Difference:
    """Compare two samples, which may have different sizes."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not len(first) or not len(second):
        return Difference(None, None, None, "unknown")
    median = float(np.median(first))
    ratio = _rounded(float(np.median(second)) / median) if median else None
    if min(len(first), len(second)) < MIN_FOR_INTERVAL:
        return Difference(ratio, None, None, "unknown")
    delta = cliffs_delta(first, second)
    return Difference(ratio, _ratio_interval(first, second, seed), round(delta, 3), _size(delta))


def cliffs_delta(a: Floats, b: Floats) -> float:
    """Return the probability that a value of b is above a value of a, minus the reverse probability."""
    ordered = np.sort(a)
    below = np.searchsorted(ordered, b, "left").sum()
    above = (len(a) - np.searchsorted(ordered, b, "right")).sum()
    return float(below - above) / (len(a) * len(b))


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval. ``n`` is the number of values, trials or events in the sample."""

    value: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float] | Floats) -> Interval | None:
    """Return the mean of a few independent values with Student's t interval; None for fewer than six."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) < MIN_FOR_INTERVAL:
        return None
    mean, half = float(data.mean()), _t_half(float(data.std(ddof=1)) / len(data) ** 0.5, len(data) - 1)
    return Interval(mean, mean - half, mean + half, len(data))


def median_interval(values: Sequence[float] | Floats, seed: int = 1) -> Interval | None:
    """Return the median of many independent values with a bootstrap interval; None for fewer than six."""
    found = bootstrap(values, "median", seed)
    return None if found is None else Interval(float(np.median(values)), *found, len(values))


def ratio_interval(above: Sequence[float] | Floats, below: Sequence[float] | Floats) -> Interval | None:
    """Return the mean of ``above``, divided by the mean of ``below``, for two independent samples.

    The interval is Welch's (Biometrika 34, 1947) for the ratio's logarithm, with variance by the delta
    method. Return None if a sample has fewer than six values, or a value that is not positive.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if min(len(a), len(b)) < MIN_FOR_INTERVAL or not ((a > 0).all() and (b > 0).all()):
        return None
    parts = [float(v.var(ddof=1)) / len(v) / float(v.mean()) ** 2 for v in (a, b)]
    variance, ratio = sum(parts), float(a.mean() / b.mean())
    weights = sum(part**2 / (len(v) - 1) for part, v in zip(parts, (a, b), strict=True))
    freedom = variance**2 / weights if weights else len(a) + len(b) - 2.0
    factor = float(np.exp(_t_half(variance**0.5, freedom)))
    return Interval(ratio, ratio / factor, ratio * factor, len(a) + len(b))


def share_interval(hits: int, of: int) -> Interval | None:
    """Return the share ``hits / of`` with Clopper and Pearson's interval. Return None if ``of`` is 0."""
    if not of:
        return None
    tail = (1 - CONFIDENCE) / 2
    low = float(betaincinv(hits, of - hits + 1, tail)) if hits else 0.0
    high = float(betaincinv(hits + 1, of - hits, 1 - tail)) if hits < of else 1.0
    return Interval(hits / of, low, high, of)


def rate_ratio_interval(
    above: int, below: int, time_above: float = 1.0, time_below: float = 1.0
) -> Interval | None:
    """Return the ratio of two rates of rare events, or None if there was no event.

    ``above`` and ``below`` are counts of events in Poisson processes. The interval is exact (Przyborowski,
    Wilenski, Biometrika 31, 1940). If ``below`` is 0, the upper end is infinite.
    """
    share = share_interval(above, above + below)
    if share is None or min(time_above, time_below) <= 0:
        return None
    low, value, high = (
        p / (1 - p) * time_below / time_above if p < 1 else float("inf")
        for p in (share.low, share.value, share.high)
    )
    return Interval(value, low, high, above + below)


def quantile_ratio_interval(
    above: Sequence[float] | Floats, below: Sequence[float] | Floats, q: float, seed: int = 1
) -> Interval | None:
    """Return a quantile of ``above``, divided by the same quantile of ``below``, with a bootstrap interval.

    ``q`` is 0 to 1. Return None if a sample has fewer than six values, or if a value of ``below``
    is not positive.
    """
    return _ratio_of(above, below, _quantile(q), seed)


def interval_of(values: Sequence[float] | Floats, statistic: str, seed: int = 1) -> Interval | None:
    """Return ``p50``, ``p90``, ``p99`` or ``mean`` with its bootstrap interval; None for too few values."""
    data = np.asarray(values, dtype=np.float64)
    if len(data) < MIN_FOR_INTERVAL:
        return None
    of = _STATISTICS[statistic]
    return Interval(float(of(data, axis=-1)), *_interval((data,), of, seed), len(data))


def interval_of_ratio(
    above: Sequence[float] | Floats, below: Sequence[float] | Floats, statistic: str, seed: int = 1
) -> Interval | None:
    """Return the ratio of a statistic of two samples, ``above / below``, with its bootstrap interval.

    Return None if a sample has fewer than six values, or if a value of ``below`` is not positive.
    """
    return _ratio_of(above, below, _STATISTICS[statistic], seed)


def _ratio_of(
    above: Sequence[float] | Floats, below: Sequence[float] | Floats, of: Callable[..., Any], seed: int
) -> Interval | None:
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if min(len(a), len(b)) < MIN_FOR_INTERVAL or not (b > 0).all():
        return None

    def ratio(x: Floats, y: Floats, axis: int = -1) -> Floats:
        found: Floats = of(x, axis=axis) / of(y, axis=axis)
        return found

    low, high = _interval((a, b), ratio, seed)
    return Interval(float(ratio(a, b)), low, high, len(a) + len(b))


def _quantile(q: float) -> Callable[..., Any]:
    def found(data: Floats, axis: int = -1) -> Any:
        return np.quantile(data, q, axis=axis)

    return found


_STATISTICS: dict[str, Callable[..., Any]] = {
    "p50": _quantile(0.5),
    "p90": _quantile(0.9),
    "p99": _quantile(0.99),
    "mean": np.mean,
}


def t_factor(freedom: float) -> float:
    """Return by how many standard errors Student's t interval reaches from the mean."""
    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _t_half(error: float, freedom: float) -> float:
    return t_factor(freedom) * error if error else 0.0


def _ratio_of_medians(a: Floats, b: Floats, axis: int) -> Floats:
    ratio: Floats = np.median(b, axis=axis) / np.median(a, axis=axis)
    return ratio


def _ratio_interval(a: Floats, b: Floats, seed: int) -> tuple[float, float] | None:
    """Return the interval of the ratio of medians. Return None if a value of ``a`` is not positive."""
    if min(len(a), len(b)) < MIN_FOR_INTERVAL or not (a > 0).all():
        return None
    rng = np.random.default_rng(seed)
    a, b = (rng.choice(v, MAX_FOR_EFFECT, replace=False) if len(v) > MAX_FOR_EFFECT else v for v in (a, b))
    return _interval((a, b), _ratio_of_medians, seed)


def _size(delta: float) -> str:
    for bound, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")):
        if abs(delta) < bound:
            return word
    return "large"


def _rounded(value: float) -> float:
    """Round to six significant digits. No measured value is more precise."""
    return float(f"{value:.6g}")
