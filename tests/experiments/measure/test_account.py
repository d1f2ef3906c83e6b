"""The effect that a collective timeout would have had on a training, step by step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.measure.metrics import (
    Crash,
    Steps,
    account_of,
    course_under,
    steps_of,
    transformer_metrics,
)

COMPUTE_US, USUAL_US = 100.0, 50.0


def made(collectives_us: list[float]) -> Steps:
    """Return steps that compute for 100 us each, one after another. Step k has a loss of 10 - k / 100."""
    took = np.array(collectives_us) + COMPUTE_US
    end = np.cumsum(took)
    losses = 10 - np.arange(len(took)) / 100
    return Steps(end - took, end - took + COMPUTE_US, end, losses)


def test_without_a_long_collective_the_course_is_what_was_measured() -> None:
    steps = made([USUAL_US] * 9)
    course = course_under(steps, 500, 4, 1000)
    assert course.end_us == steps.end_us.tolist()
    assert course.losses == steps.losses.tolist()
    assert course.crashes == []


def test_a_long_collective_costs_the_steps_since_the_checkpoint() -> None:
    steps = made([USUAL_US] * 6 + [2000] + [USUAL_US] * 2)
    course = course_under(steps, 500, 4, 1000)
    began = 6 * 150 + COMPUTE_US
    assert course.crashes == [Crash(6, began + 500, 3)]
    # Steps 4 and 5 are repeated in the median time, then step 6 without its stall, and so on.
    assert course.losses == [10 - n / 100 for n in (0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8)]
    back = began + 500 + 1000
    assert course.end_us[6:] == pytest.approx([back + 150 * n for n in range(1, 6)])


def test_a_crash_right_after_a_checkpoint_costs_the_step_under_way() -> None:
    course = course_under(made([USUAL_US] * 4 + [501]), 500, 4, 0)
    assert [crash.lost_steps for crash in course.crashes] == [1]


def test_a_job_that_failed_by_itself_is_a_crash_as_well() -> None:
    course = course_under(made([USUAL_US] * 6), 500, 4, 1000, failed=True)
    assert course.crashes == [Crash(6, 900, 3)]
    assert course_under(made([]), 500, 4, 1000, failed=True).crashes == [Crash(0, 0, 1)]


@given(st.lists(st.floats(1, 5000), max_size=40), st.floats(1, 5000), st.integers(1, 50), st.floats(0, 1e4))
def test_every_step_is_done_in_the_end_and_time_goes_on(
    collectives: list[float], timeout_us: float, every: int, restart_us: float
) -> None:
    course = course_under(made(collectives), timeout_us, every, restart_us)
    assert sorted(set(course.losses), reverse=True) == [10 - n / 100 for n in range(len(collectives))]
    assert (np.diff(course.end_us) > 0).all()
    lost = sum(crash.lost_steps for crash in course.crashes)
    # The step in which the job crashes is also lost, but it is not among the ended steps.
    assert len(course.end_us) == len(collectives) + lost - len(course.crashes)
    assert len(course.crashes) == sum(took > timeout_us for took in made(collectives).collective_us)


def rank(late_ns: int, digests: list[int], steps: int = 2) -> dict[str, Any]:
    """Return a rank that leaves the first step's barrier ``late_ns`` after the other ranks."""
    start = np.array([0, 150_000 + late_ns])[:steps] + 1000
    computed = np.array([100_000, 300_000 + late_ns])[:steps] + 1000
    end = np.array([150_000 + late_ns, 400_000 + late_ns])[:steps] + 1000
    times = {"start_ns": start, "computed_ns": computed, "reduced_ns": end, "end_ns": end}
    words = np.repeat(np.array(digests, np.int64), 4)
    return {**times, "loss_e9": np.array([4_000_000_000, 2_000_000_000])[:steps], "digests": words}


def test_a_rank_that_leaves_late_lengthens_only_its_own_step() -> None:
    steps = steps_of([rank(0, []), rank(80_000, [])], measure_ns=1000)
    assert steps.start_us.tolist() == [0, 230]
    assert steps.end_us.tolist() == [230, 480]
    assert steps.losses.tolist() == [4, 2]
    found = transformer_metrics(steps, course_under(steps, 1e6, 4, 0))
    assert found["step_us"] == [230, 250]
    assert found["comm_us"] == [130, 100]
    assert found["stalled_us"] == [15, 0]
    assert found["crashes"] == found["lost_steps"] == [0]


def account(ranks: list[dict[str, Any]], alone: list[int]) -> dict[str, Any]:
    steps = steps_of(ranks, 1000)
    digests = [np.full(4, word, np.int64).tobytes().hex() for word in alone]
    return account_of(steps, course_under(steps, 1e6, 4, 0), ranks, digests, {"steps": 2})


def test_an_account_says_where_parameters_differ() -> None:
    same = account([rank(0, [1, 2, 3]), rank(0, [1, 2, 3])], [1, 2, 3])
    assert same["parameters_sha256"] == same["alone_sha256"] is not None
    assert same["parameters_differ_at"] is None
    assert account([rank(0, [1, 2, 3]), rank(0, [1, 9, 3])], [1, 2, 3])["parameters_differ_at"] == 1
    assert account([rank(0, [1, 2, 3]), rank(0, [1, 2, 3])], [1, 2, 4])["parameters_differ_at"] == 2
    assert account([rank(0, [1, 2, 3]), rank(0, [1, 2, 9])], [])["parameters_differ_at"] == 2


def test_an_account_of_a_job_that_failed_says_how_far_it_came() -> None:
    found = account([rank(0, [1, 2], steps=1), rank(0, [1, 2])], [1, 2, 3])
    assert found["steps"] == 1
    assert found["wanted_steps"] == 2
    assert found["parameters_sha256"] == found["alone_sha256"]
    assert found["parameters_differ_at"] is None
    nothing = account([], [1])
    assert nothing["steps"] == 0
    assert nothing["losses"] == []
