"""The control loop for the sending rate of the workload `spray`."""

from __future__ import annotations

import pytest

from mrclab.experiments.live.drivers.spray import DOWN, REFUSED, UP, Pace
from mrclab.experiments.measure.load import Load

MOST = 100_000_000


def trial(share: float | None, cost: float | None = None) -> Load:
    return Load(10**9, 0.5, 0.0, 0.0, 0, None, 0, 0.0, share=share, cost=cost)


@pytest.mark.parametrize(
    ("made", "share", "rate", "right"),
    [
        (100, 0.5, 100, True),
        (100, 1.0, 75, False),
        (40, 1.0, 30, False),
        (60, 0.5, 90, False),
        (1, 1.0, 10, False),
        (0, 0.0, 10, False),
    ],
)
def test_the_warm_up_finds_the_rate_that_keeps_an_endpoint_as_busy_as_wanted(
    made: int, share: float, rate: int, right: bool
) -> None:
    pace = Pace(MOST, 0.75)
    assert pace.look(made * 10**6, share) is right
    assert pace.bps == rate * 10**6


def test_a_trial_changes_the_rate_by_little_and_only_if_its_share_was_wrong() -> None:
    pace = Pace(MOST, 0.8)
    assert pace.look(MOST, 0.8)
    start = pace.bps
    assert start == MOST
    assert not pace.after(trial(0.85))
    assert pace.bps == round(MOST * 0.8 / 0.85)
    before = pace.bps
    for share in (0.75, 0.78, 0.8, None):
        assert pace.after(trial(share))
        assert pace.bps == before
    assert pace.after(trial(0.4))
    assert pace.bps == pytest.approx(before * UP, abs=1)


def test_after_a_refused_trial_the_rate_stays_below_that_trial_s() -> None:
    pace = Pace(MOST, 0.8)
    assert not pace.after(trial(0.99))
    assert pace.bps == round(MOST * 0.8 / 0.99)
    before = pace.bps
    assert pace.after(trial(0.79, cost=1.6))  # a lower rate does not help
    assert pace.bps == before
    limit = round(REFUSED * MOST)
    for _ in range(20):
        pace.after(trial(0.3))
    assert pace.bps == pytest.approx(limit, abs=1)


def test_the_rate_stays_above_a_tenth_of_the_scenario_s() -> None:
    pace = Pace(MOST, 0.8)
    for _ in range(30):
        pace.after(trial(2.0))
    assert pace.bps == MOST // 10
    assert DOWN < 1 < UP


@pytest.mark.parametrize("cost_us", [20, 45, 90])
@pytest.mark.parametrize("drift", [1.0, 1.02, 0.97])
def test_the_loop_keeps_the_share_while_the_cost_of_a_packet_drifts(cost_us: int, drift: float) -> None:
    """If packets cost more and more, or less and less, the rate follows within one trial."""
    pace, most = Pace(20_000 * 2048, 0.8), 20_000 * 2048
    cost = cost_us * 1e-6
    for number in range(40):
        share = min(1.0, pace.bps / 2048 * cost)
        if number > 6:
            assert share <= 0.84
            assert share >= 0.74 or pace.bps >= 0.95 * most or drift < 1
        pace.after(trial(share))
        cost *= drift
