"""Queue pairs end on either side, at any time, while profiles change. Other queue pairs must not be affected.

MRC_SCHEDULES=10000 makes a long run. The number of a failing schedule is its seed.
"""

import os

import pytest

from tests.support.ended_schedules import draw, run

COUNT = int(os.environ.get("MRC_SCHEDULES", "60"))
QUICK = 12


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_queue_pair_that_ends_leaves_its_neighbours_alone(seed):
    run(draw(seed))


@pytest.mark.slow
@pytest.mark.timeout(300 + COUNT // 2)
def test_queue_pairs_end_and_ends_restart_at_any_time():
    for seed in range(QUICK, QUICK + COUNT):
        try:
            run(draw(seed))
        except AssertionError as error:
            raise AssertionError(f"schedule {seed}: {draw(seed)}") from error
