from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from mrclab.experiments.result.statistics import (
    bootstrap,
    cliffs_delta,
    difference,
    mean_interval,
    median_interval,
    quantile_ratio_interval,
    rate_ratio_interval,
    ratio_interval,
    share_interval,
    summarise,
    t_factor,
)

numbers = st.lists(st.floats(0.001, 1e9), min_size=1, max_size=50)


@settings(max_examples=50, deadline=None)
@given(numbers)
def test_a_summary_is_in_order(values: list[float]) -> None:
    found = summarise(values)
    assert found.n == len(values)
    assert found.min is not None
    assert found.max is not None
    chain = [found.min, found.p50, found.p90, found.p99, found.p999, found.max]
    assert all(a <= b * (1 + 1e-5) for a, b in pairwise(chain))  # type: ignore[operator]
    assert (found.ci95_p50 is None) == (len(values) < 6)
    if found.ci95_p50 is not None:
        assert found.min * (1 - 1e-5) <= found.ci95_p50[0] <= found.ci95_p50[1] <= found.max * (1 + 1e-5)


def test_nothing_has_no_summary() -> None:
    assert summarise([]).to_dict()["p50"] is None
    assert bootstrap([1.0, 2.0, 3.0, 4.0, 5.0]) is None


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        low, high = bootstrap(rng.normal(10, 3, 40), "mean", trial) or (0, 0)
        hits += low <= 10 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_equal_samples_give_equal_intervals() -> None:
    assert bootstrap([1.0, 5.0, 9.0, 2.0, 3.0, 7.0]) == bootstrap([1.0, 5.0, 9.0, 2.0, 3.0, 7.0])


@given(numbers, numbers)
def test_cliffs_delta_counts_pairs(a: list[float], b: list[float]) -> None:
    pairs = [(y > x) - (y < x) for x in a for y in b]
    assert cliffs_delta(np.array(a), np.array(b)) == pytest.approx(sum(pairs) / len(pairs))


@settings(max_examples=20)
@given(st.lists(st.floats(0.001, 1e6), min_size=6, max_size=30), st.integers(0, 2**32))
def test_intervals_have_the_numbers_of_another_implementation(values: list[float], seed: int) -> None:
    rng = np.random.default_rng(seed)
    theirs = stats.bootstrap(
        (np.array(values),), np.mean, n_resamples=2000, confidence_level=0.95, method="percentile", rng=rng
    ).confidence_interval
    assert bootstrap(values, "mean", seed) == pytest.approx((theirs.low, theirs.high), rel=1e-5)
    hits, of = seed % (len(values) + 1), len(values)
    share, exact = share_interval(hits, of), stats.binomtest(hits, of).proportion_ci(0.95, method="exact")
    assert share is not None
    assert (share.low, share.high) == pytest.approx((exact.low, exact.high))


def test_students_t_is_that_of_another_implementation() -> None:
    for freedom in (5, 11, 200):
        assert t_factor(freedom) == pytest.approx(stats.t.ppf(0.975, freedom))


def test_a_difference_has_a_ratio_and_a_size() -> None:
    few = [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]
    found = difference(few, [10.0 * value for value in few])
    assert found.ratio == 10
    assert found.ci95_ratio is not None
    assert found.ci95_ratio[0] <= 10 <= found.ci95_ratio[1]
    assert (found.cliffs_delta, found.size) == (1.0, "large")
    assert difference(few, few).size == "negligible"
    five = difference(few[:5], few)
    assert (five.ratio, five.ci95_ratio, five.cliffs_delta, five.size) == (1.0, None, None, "unknown")
    assert difference([], [1.0]).ratio is None


def test_intervals_of_few_repetitions_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    means = ratios = 0
    for _ in range(500):
        mean = mean_interval(rng.normal(10, 1, 6))
        ratio = ratio_interval(rng.normal(20, 1, 6), rng.normal(10, 0.5, 6))
        assert mean is not None
        assert ratio is not None
        means += mean.low <= 10 <= mean.high
        ratios += ratio.low <= 2 <= ratio.high
    assert 0.92 <= means / 500 <= 0.98
    assert 0.92 <= ratios / 500 <= 0.99


def test_intervals_by_hand() -> None:
    mean = mean_interval([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert mean is not None
    # 2.570582 is Student's t for five degrees of freedom.
    assert (mean.value, mean.high) == (3.5, pytest.approx(3.5 + 2.570582 * (3.5 / 6) ** 0.5))
    share = share_interval(0, 10)
    assert share is not None
    assert share.high == pytest.approx(1 - 0.025**0.1)
    rates = rate_ratio_interval(0, 1499, 2.0, 1.0)
    assert rates is not None
    # With 0 of 1499 events, the share is below 1 - 0.025^(1/1499).
    assert rates.high == pytest.approx((0.025 ** (-1 / 1499) - 1) / 2)
    more = rate_ratio_interval(3, 0)
    assert more is not None
    assert more.high == float("inf")


def test_no_interval_without_values() -> None:
    five = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert mean_interval(five) is None
    assert median_interval(five) is None
    assert ratio_interval([1.0, *five], five) is None
    assert ratio_interval([1.0, *five], [0.0, *five]) is None
    assert share_interval(0, 0) is None
    assert rate_ratio_interval(0, 0) is None
    assert quantile_ratio_interval([1.0, *five], five, 0.5) is None


def test_a_ratio_of_quantiles() -> None:
    found = quantile_ratio_interval(np.arange(100) + 200.0, np.arange(100) + 100.0, 0.5)
    assert found is not None
    assert found.low < 249.5 / 149.5 < found.high
    assert found.value == pytest.approx(249.5 / 149.5)
