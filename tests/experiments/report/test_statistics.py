from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.report.statistics import bootstrap, cliffs_delta, difference, summarise

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
    if len(values) >= 3:
        assert found.ci95_p50 is not None
        assert found.min * (1 - 1e-5) <= found.ci95_p50[0] <= found.ci95_p50[1] <= found.max * (1 + 1e-5)


def test_nothing_has_no_summary() -> None:
    assert summarise([]).to_dict()["p50"] is None
    assert bootstrap([1.0, 2.0]) is None


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for trial in range(200):
        low, high = bootstrap(rng.normal(10, 3, 40), "mean", trial) or (0, 0)
        hits += low <= 10 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_equal_samples_give_equal_intervals() -> None:
    assert bootstrap([1.0, 5.0, 9.0, 2.0]) == bootstrap([1.0, 5.0, 9.0, 2.0])


@given(numbers, numbers)
def test_cliffs_delta_counts_pairs(a: list[float], b: list[float]) -> None:
    pairs = [(y > x) - (y < x) for x in a for y in b]
    assert cliffs_delta(np.array(a), np.array(b)) == pytest.approx(sum(pairs) / len(pairs))


def test_a_difference_has_a_ratio_and_a_size() -> None:
    found = difference([1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert found.ratio == 10
    assert found.ci95_ratio is not None
    assert found.ci95_ratio[0] <= 10 <= found.ci95_ratio[1]
    assert (found.cliffs_delta, found.size) == (1.0, "large")
    assert difference([1.0, 2.0], [1.0, 2.0]).size == "negligible"
    assert difference([], [1.0]).ratio is None
