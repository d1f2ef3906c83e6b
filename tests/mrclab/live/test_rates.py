"""The rate of a flow on the live page, from readings ten times a second."""

from __future__ import annotations

from collections import deque

import pytest

from mrclab.live.plan import TrafficPlan
from mrclab.live.session import Session

PERIOD_NS = 100_000_000


def rates_of(plan: TrafficPlan, delivered: list[int]) -> list[int]:
    """Return the rate after each reading of the delivered bytes."""
    session = object.__new__(Session)  # only its plan is used
    session.plan = plan
    readings: deque[tuple[int, int]] = deque()
    return [session._rate(readings, number * PERIOD_NS, placed) for number, placed in enumerate(delivered)]


def test_a_slow_flow_is_not_silent_between_two_messages() -> None:
    plan = TrafficPlan(rate_bps=100_000)  # a message of 32 KiB each 2.6 s
    delivered = [32768 * (number * PERIOD_NS // 2_621_440_000) for number in range(400)]
    late = rates_of(plan, delivered)[150:]
    assert min(late) > 70_000
    assert max(late) < 130_000


@pytest.mark.parametrize("pattern", ["stream", "all-reduce"])
def test_a_flow_that_stops_is_silent_with_the_next_reading(pattern: str) -> None:
    plan = TrafficPlan(pattern=pattern)  # type: ignore[arg-type]
    per_reading = plan.rate_bps * PERIOD_NS // (8 * 10**9)
    found = rates_of(plan, [0, per_reading, 2 * per_reading, 2 * per_reading, 3 * per_reading])
    assert found == [0, plan.rate_bps, plan.rate_bps, 0, plan.rate_bps]
