"""Summaries of samples with intervals from the bootstrap, and how large the difference of two samples is.

Everything random is seeded: equal samples give equal intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
RESAMPLES = 2000
MIN_FOR_INTERVAL = 3
MAX_FOR_EFFECT = 2000
LARGEST_BATCH = 4_000_000  # numbers drawn at once

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one metric. Intervals are of the median and the mean, 95 %, None below three values."""

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
        """As it goes into result.json."""
        return asdict(self)


def summarise(values: Sequence[float] | Floats, seed: int = 1) -> Summary:
    """The summary of a sample: percentiles by linear interpolation, intervals by the percentile bootstrap."""
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
    """The 95 % interval of the median or the mean. None below three values.

    The percentile bootstrap: Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < MIN_FOR_INTERVAL:
        return None
    rng = np.random.default_rng(seed)
    found: list[Floats] = []
    batch = max(1, min(RESAMPLES, LARGEST_BATCH // len(data)))
    for start in range(0, RESAMPLES, batch):
        drawn = data[rng.integers(0, len(data), (min(batch, RESAMPLES - start), len(data)))]
        found.append(np.median(drawn, axis=1) if of == "median" else drawn.mean(axis=1))
    low, high = np.percentile(np.concatenate(found), (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)))
    return _rounded(float(low)), _rounded(float(high))


@dataclass(frozen=True, slots=True)
class Difference:
    """Of sample ``b`` against sample ``a``."""

    ratio: float | None
    """Median of b over median of a."""
    ci95_ratio: tuple[float, float] | None
    cliffs_delta: float | None
    """From -1 (every b below every a) over 0 to 1 (every b above): an effect size without assumptions on
    distributions (Cliff, Psychological Bulletin 114, 1993)."""
    size: str
    """`negligible`, `small`, `medium`, `large`, by the usual bounds 0.147, 0.33, 0.474."""


def difference(a: Sequence[float] | Floats, b: Sequence[float] | Floats, seed: int = 1) -> Difference:
    """How two samples differ."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not len(first) or not len(second):
        return Difference(None, None, None, "unknown")
    median = float(np.median(first))
    ratio = _rounded(float(np.median(second)) / median) if median else None
    delta = cliffs_delta(first, second, seed)
    return Difference(ratio, _ratio_interval(first, second, seed), round(delta, 3), _size(delta))


def cliffs_delta(a: Floats, b: Floats, seed: int = 1) -> float:
    """Chance that a value of b is above one of a, less the chance that it is below.

    Of long samples a part is drawn, since every pair is looked at.
    """
    rng = np.random.default_rng(seed)
    a, b = (rng.choice(v, MAX_FOR_EFFECT, replace=False) if len(v) > MAX_FOR_EFFECT else v for v in (a, b))
    ordered = np.sort(a)
    below = np.searchsorted(ordered, b, side="left").sum()
    above = (len(a) - np.searchsorted(ordered, b, side="right")).sum()
    return float(below - above) / (len(a) * len(b))


def _ratio_interval(a: Floats, b: Floats, seed: int) -> tuple[float, float] | None:
    if min(len(a), len(b)) < MIN_FOR_INTERVAL:
        return None
    rng = np.random.default_rng(seed)
    a, b = (rng.choice(v, MAX_FOR_EFFECT, replace=False) if len(v) > MAX_FOR_EFFECT else v for v in (a, b))
    medians = [np.median(v[rng.integers(0, len(v), (RESAMPLES, len(v)))], axis=1) for v in (a, b)]
    if not (medians[0] > 0).all():
        return None
    low, high = np.percentile(medians[1] / medians[0], (50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)))
    return _rounded(float(low)), _rounded(float(high))


def _size(delta: float) -> str:
    for bound, word in ((0.147, "negligible"), (0.33, "small"), (0.474, "medium")):
        if abs(delta) < bound:
            return word
    return "large"


def _rounded(value: float) -> float:
    """Six digits that count: more than any of this is known to."""
    return float(f"{value:.6g}")
