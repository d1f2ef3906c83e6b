from __future__ import annotations

from itertools import count, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.recording import STEP_NS, ClockMap, OffsetSample, measure_offset

EPOCH = 1_793_000_000_000_000_000


def test_the_tightest_triple_wins() -> None:
    monotonic = iter([0, 1000, 2000, 2100, 3000, 5000])
    realtime = iter([EPOCH + 400, EPOCH + 2051, EPOCH + 3500])
    sample = measure_offset(3, lambda: next(monotonic), lambda: next(realtime))
    assert sample == OffsetSample(at_ns=2050, offset_ns=EPOCH + 1, error_ns=50)


@given(lag=st.integers(0, 100), width=st.integers(1, 100))
def test_the_true_offset_is_within_the_error(lag: int, width: int) -> None:
    ticks = count(10_000, width)
    last = [0]

    def monotonic() -> int:
        last[0] = next(ticks)
        return last[0]

    sample = measure_offset(1, monotonic, lambda: last[0] + EPOCH + min(lag, width))
    assert abs(sample.offset_ns - EPOCH) <= sample.error_ns


def test_the_machine_s_own_clocks_are_measured_to_microseconds() -> None:
    samples = [measure_offset() for _ in range(50)]
    assert min(sample.error_ns for sample in samples) < 50_000
    for a, b in pairwise(samples):
        slewed = (b.at_ns - a.at_ns) // 2_000  # adjtime(3) slews by at most 500 ppm
        assert abs(a.offset_ns - b.offset_ns) <= a.error_ns + b.error_ns + slewed + 1_000


def test_conversion_is_exact_to_the_nanosecond() -> None:
    clock = ClockMap.of(
        [OffsetSample(5_000_000_123, EPOCH + 7, 30), OffsetSample(9_000_000_123, EPOCH + 7, 40)]
    )
    stamps = np.array([5_000_000_001, 7_123_456_789, 123_456_789_987], np.int64)
    assert (clock.to_monotonic(stamps + EPOCH + 7) == stamps).all()


def test_drift_is_interpolated_and_counts_as_error() -> None:
    clock = ClockMap.of([OffsetSample(2_000, EPOCH + 100, 5), OffsetSample(1_000, EPOCH, 3)])
    assert clock.to_monotonic(np.array([EPOCH + 1_000, EPOCH + 1_550, EPOCH + 2_100], np.int64)).tolist() == [
        1_000,
        1_500,
        2_000,
    ]
    assert clock.error_ns(1_500) == 105
    assert clock.max_change_ns == 100


def test_a_step_is_noticed() -> None:
    clock = ClockMap.of([OffsetSample(0, EPOCH, 1), OffsetSample(10, EPOCH + STEP_NS + 1, 1)])
    assert clock.max_change_ns > STEP_NS


def test_a_map_needs_ordered_samples() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ClockMap(())
    with pytest.raises(ValueError, match="in order"):
        ClockMap((OffsetSample(2, 0, 0), OffsetSample(1, 0, 0)))
