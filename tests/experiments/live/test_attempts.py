"""If a slow start spoils a repetition, the run makes a second attempt and continues."""

from __future__ import annotations

import pytest

from mrclab.experiments.live.drivers.ranks import OPEN_TIMEOUT_S, start_timeout_s
from mrclab.experiments.live.repetition import Attempts, StartError
from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.hosts.training.accelerator import LONGEST_START_S
from tests.experiments.run.test_made_again import QUIET, STOLEN, repetition

SLOW = "the agent on h0: the accelerator is not ready after 50 s"


class Bench:
    """A fake that returns given repetitions or raises given errors."""

    def __init__(self, outcomes: list[Repetition | StartError], left: int) -> None:
        self._outcomes = iter(outcomes)
        self.said: list[str] = []
        self.spent = 0
        self.attempts = Attempts(self._make, left, self.said.append, self._spend)

    def _make(self, _number: int) -> Repetition:
        found = next(self._outcomes)
        if isinstance(found, StartError):
            raise found
        return found

    def _spend(self) -> None:
        self.spent += 1


def test_a_slow_start_is_made_again_and_told() -> None:
    bench = Bench([StartError(SLOW), repetition(QUIET, 5.0)], left=1)
    found = bench.attempts.repetition(2, trials=False)
    assert found.metrics == {"latency_us": [5.0]}
    assert found.set_aside == ()
    assert found.validity.valid
    assert bench.said == [f"repetition 2 began again: {SLOW}"]
    assert bench.said[0] in found.validity.notes
    assert bench.spent == 1


@pytest.mark.parametrize(("left", "fails"), [(0, 1), (1, 2)])
def test_starts_that_fail_again_end_the_run(left: int, fails: int) -> None:
    bench = Bench([StartError(SLOW)] * fails, left)
    with pytest.raises(StartError, match="not ready after 50 s"):
        bench.attempts.repetition(0, trials=False)
    assert bench.spent == left


@pytest.mark.parametrize(
    ("trials", "left", "made"),
    [(False, 1, 5.0), (True, 1, 900.0), (False, 0, 900.0)],
)
def test_a_disturbed_repetition_is_made_again_if_it_has_no_trials(
    trials: bool, left: int, made: float
) -> None:
    bench = Bench([repetition(STOLEN, 900.0), repetition(QUIET, 5.0)], left)
    assert bench.attempts.repetition(0, trials=trials).metrics == {"latency_us": [made]}
    assert bench.spent == (made == 5.0)


def test_both_kinds_of_second_attempts_share_one_account() -> None:
    outcomes: list[Repetition | StartError] = [StartError(SLOW), repetition(STOLEN), repetition(QUIET)]
    few, enough = Bench(list(outcomes), 1), Bench(list(outcomes), 2)
    assert few.attempts.repetition(0, trials=False).set_aside == ()
    assert len(enough.attempts.repetition(0, trials=False).set_aside) == 1


def _timeout_s(name: str) -> float:
    scenario = load_scenario(name)
    return start_timeout_s(scenario.placement(scenario.fabric(), scenario.seed))


def test_ranks_are_waited_for_longer_than_their_accelerators() -> None:
    """Ranks may wait long for their accelerators, so the driver must wait even longer for the ranks."""
    assert _timeout_s("training") > LONGEST_START_S
    assert _timeout_s("t1-reboot") == OPEN_TIMEOUT_S
