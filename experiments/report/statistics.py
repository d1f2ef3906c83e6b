"""Summaries of samples with intervals from the bootstrap, and the size of the difference of two samples.

Everything random is seeded: equal samples give equal intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import mannwhitneyu

CONFIDENCE = 0.95
RESAMPLES = 2000
MIN_FOR_INTERVAL = 3
MAX_FOR_EFFECT = 2000
LARGEST_BATCH = 4_000_000  # numbers drawn at once

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one metric. Intervals are of the median and the mean, 95 %, None below three values."""

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
        """Return it as it goes into result.json."""
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
    """Return the 95 % interval of the median or the mean. None below three values.

    The percentile bootstrap: Efron, Tibshirani: An Introduction to the Bootstrap, 1993, chapter 13.
    """
    data = np.asarray(values, dtype=np.float64)
    if len(data) < MIN_FOR_INTERVAL:
        return None
    return _interval((data,), np.median if of == "median" else np.mean, seed)


def _interval(samples: tuple[Floats, ...], statistic: Callable[..., Any], seed: int) -> tuple[float, float]:
    longest = max(len(sample) for sample in samples)
    found = scipy_bootstrap(
        samples,
        statistic,
        n_resamples=RESAMPLES,
        batch=max(1, min(RESAMPLES, LARGEST_BATCH // longest)),
        vectorized=True,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return _rounded(float(found.low)), _rounded(float(found.high))


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of sample ``b`` from sample ``a``."""

    ratio: float | None
    """Median of b over median of a."""
    ci95_ratio: tuple[float, float] | None
    cliffs_delta: float | None
    """From -1 (every b below every a) over 0 to 1 (every b above): an effect size without assumptions on
    distributions (Cliff, Psychological Bulletin 114, 1993)."""
    size: str
    """`negligible`, `small`, `medium`, `large`, by the usual bounds 0.147, 0.33, 0.474."""


def difference(a: Sequence[float] | Floats, b: Sequence[float] | Floats, seed: int = 1) -> Difference:
    """Compare two samples."""
    first, second = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if not len(first) or not len(second):
        return Difference(None, None, None, "unknown")
    median = float(np.median(first))
    ratio = _rounded(float(np.median(second)) / median) if median else None
    delta = cliffs_delta(first, second)
    return Difference(ratio, _ratio_interval(first, second, seed), round(delta, 3), _size(delta))


def cliffs_delta(a: Floats, b: Floats) -> float:
    """Return the chance that a value of b is above one of a, less the chance that it is below."""
    u = float(mannwhitneyu(b, a, method="asymptotic").statistic)
    return 2 * u / (len(a) * len(b)) - 1


def _ratio_of_medians(a: Floats, b: Floats, axis: int) -> Floats:
    ratio: Floats = np.median(b, axis=axis) / np.median(a, axis=axis)
    return ratio


def _ratio_interval(a: Floats, b: Floats, seed: int) -> tuple[float, float] | None:
    """Return the interval of the ratio of medians; None where a is not positive throughout."""
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
    """Round to six digits: nothing here is known better."""
    return float(f"{value:.6g}")
