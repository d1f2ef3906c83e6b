"""A run of planned faults, in which switches may also end unexpectedly. Each fault gets one `Load`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from mrclab.experiments.measure.load import Load
from mrclab.experiments.run.fault_run import FaultRun, SequenceSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.faults.kinds import Fault, Moment
from mrclab.linux.errors import SwitchError
from mrclab.linux.process_watch import Death

SWITCH = "p0-t1-0"
DEATH = Death(f"switch {SWITCH}", 5, 6)
QUIET = Load(10**8, 0.4, 0.0, 0.01, 10**6, "sender", 0, 0.1)
STOLEN = replace(QUIET, steal=0.2)
MS = 1_000_000


class Faults:
    """A fake that accepts every fault. It cannot undo a fault in a switch that has ended."""

    def __init__(self) -> None:
        self.lost = False
        self.broken: set[str] = set()

    def prepare(self, fault: Fault) -> None: ...

    def wait_prepared(self, fault: Fault) -> None: ...

    def drop_prepared(self) -> None: ...

    def refusal(self, fault: Fault) -> str | None:
        return "faulty already" if fault.where in self.broken else None

    def apply(self, fault: Fault) -> Moment:
        return Moment(1, 2, "controller")

    def undo(self, where: str) -> Moment:
        if self.lost:
            self.lost = False
            raise grpc.RpcError
        return Moment(3, 4, "controller")

    def forget(self, where: str) -> None: ...


class Deaths:
    """A fake watch over switches. A test puts deaths into ``coming``."""

    def __init__(self) -> None:
        self.coming: list[Death] = []
        self.reviving = False
        self.revive_ns: int | None = None

    def next_death(self, broken: Callable[[str], bool]) -> Death | None:
        return self.coming.pop(0) if self.coming else None

    def require_death(self) -> None:
        if not self.coming:
            self.coming.append(DEATH)

    def words(self, death: Death) -> str:
        return f"{death.name} ended"

    def switch(self, death: Death) -> str:
        return SWITCH

    def plan_revival(self, death: Death, at_ns: int) -> None:
        self.reviving, self.revive_ns = True, at_ns

    def revive(self, clock: Callable[[], int]) -> Iterator[tuple[str, Death, Moment]]:
        self.reviving, self.revive_ns = False, None
        yield SWITCH, DEATH, Moment(7, 8, "testbed")


class Paths:
    """A fake in which all paths are back as soon as the run asks."""

    def __init__(self) -> None:
        self.restored: bool | None = None

    def ask_restored(self, timeout_s: float) -> None:
        self.restored = True


class Recorder:
    """A counter of calls of `mark`. ``loads`` has the load of each trial, in order."""

    def __init__(self, loads: Iterator[Load]) -> None:
        self.marks = 0
        self._loads = loads
        self.usual: list[int] = []
        """The number of calls of `mark` each time that a load was taken as usual."""

    def mark(self) -> None:
        self.marks += 1

    def last_load(self) -> Load:
        return next(self._loads)

    def amend(self, load: Load) -> None: ...

    def take_as_usual(self) -> None:
        self.usual.append(self.marks)


class Pace:
    """A fake search for the workload's rate. It finds the right rate in trial number ``right``."""

    rehearses = True

    def __init__(self, right: int) -> None:
        self.trials, self._right = 0, right

    def adapt(self, load: Load) -> bool:
        self.trials += 1
        return self.trials >= self._right


class Bench:
    """A fault run of three trials with fakes, and a clock that jumps to the next due time."""

    def __init__(self, loads: list[Load], pace: Pace | None = None) -> None:
        self.faults, self.deaths, self.steps = Faults(), Deaths(), 0
        self.recorder = Recorder(iter(loads))
        self.injector = Injector(self.faults)
        trials = [PlannedFault("blackhole", place, 0, 100 * MS) for place in "abc"]
        paths: Any = Paths()
        recorder: Any = self.recorder
        deaths: Any = self.deaths
        self.said: list[str] = []
        self.sequence = SequenceSource(
            self.injector, trials, 150 * MS, paths, recorder, deaths, self._step, self.said.append, pace
        )
        self.run = FaultRun(self.injector, [], [self.sequence], deaths)
        self.now_ns = 0

    def _step(self) -> None:
        self.steps += 1

    def turn(self) -> None:
        self.now_ns = max(self.now_ns, self.run.next_ns or 0)
        self.run.act(lambda: self.now_ns)

    def finish(self) -> str:
        for _ in range(100):
            if self.run.over:
                return "".join(r.where for r in self.injector.records() if len(r.where) == 1)
            self.turn()
        raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("loads", "places"),
    [
        ([QUIET] * 3, "abc"),
        ([QUIET, STOLEN, STOLEN, QUIET, QUIET], "abcbc"),
        ([STOLEN] * 6, "abcabc"),  # there are at most as many repeats as trials
    ],
)
def test_a_trial_in_which_the_machine_did_not_keep_up_is_made_again(loads: list[Load], places: str) -> None:
    bench = Bench(loads)
    assert bench.finish() == places
    assert bench.steps == 3
    assert bench.recorder.marks - 1 == len(bench.injector)
    assert len(bench.said) == (1 if STOLEN in loads else 0)  # the message appears once


def test_a_trial_waits_for_its_place_and_is_left_out_if_that_stays_broken() -> None:
    bench = Bench([QUIET] * 3)
    bench.faults.broken = {"a", "c"}
    bench.turn()
    bench.faults.broken = {"a"}
    assert bench.finish() == "bc"
    assert bench.sequence.notes == ["1 trials were left out: their places were broken already"]
    assert (bench.steps, bench.sequence.done, bench.sequence.wanted) == (3, 2, 2)


@pytest.mark.parametrize("turns", range(1, 10))
@pytest.mark.parametrize("lost", [False, True], ids=["fault undone", "fault lost"])
def test_every_record_has_its_load_where_a_switch_ends_unasked(turns: int, lost: bool) -> None:
    bench = Bench([QUIET] * 10)
    for _ in range(turns):
        bench.turn()
    holding = bench.injector.broken("a") or bench.injector.broken("b") or bench.injector.broken("c")
    bench.faults.lost = lost and holding
    bench.deaths.coming.append(DEATH)
    bench.run.act(lambda: bench.now_ns)
    bench.finish()
    assert [record.where for record in bench.injector.records()].count(SWITCH) == 1
    assert bench.run.failures == [f"switch {SWITCH} ended"]
    assert bench.recorder.marks - 1 == len(bench.injector)


def test_a_path_retired_while_all_settles_is_waited_for_before_the_next_fault() -> None:
    # A trial takes 250 ms: 100 with the fault, 150 to settle. Only the first retirement is due to the fault.
    disturbed = replace(QUIET, retired_ns=(10 * MS, 240 * MS))
    late = replace(QUIET, retired_ns=(500 * MS, 10_000 * MS))
    usual, longer = Bench([replace(QUIET, retired_ns=(10 * MS,))] * 3), Bench([disturbed, QUIET, late])
    for bench in (usual, longer):
        assert bench.finish() == "abc"
        assert bench.recorder.marks - 1 == len(bench.injector)
    assert longer.now_ns - usual.now_ns == 150 * MS, "nothing follows the last trial"


def test_paths_that_do_not_come_back_are_noted() -> None:
    bench = Bench([QUIET] * 3)
    paths: Any = bench.sequence._paths
    paths.ask_restored = lambda timeout_s: setattr(paths, "restored", False)
    bench.finish()
    assert bench.run.notes[0] == "trial 0: not every path came back within 5 s"


def test_a_target_that_cannot_start_a_switch_again_ends_the_run() -> None:
    bench = Bench([QUIET] * 3)
    bench.turn()

    def refuse(death: Death) -> str:
        raise SwitchError("the switches' process ended")

    bench.deaths.words = refuse  # type: ignore[method-assign]
    bench.deaths.coming.append(DEATH)
    with pytest.raises(SwitchError):
        bench.run.act(lambda: bench.now_ns)


@pytest.mark.parametrize(
    ("right", "loads", "rehearsals"),
    [
        (1, [QUIET] * 4, 1),
        (2, [QUIET] * 5, 2),
        (1, [STOLEN, *[QUIET] * 4], 2),  # the machine did not keep up in the first trial
        (9, [QUIET] * 6, 3),  # three at most
    ],
)
def test_rehearsals_come_first_until_the_rate_is_right(
    right: int, loads: list[Load], rehearsals: int
) -> None:
    pace = Pace(right)
    bench = Bench(loads, pace)
    assert bench.finish() == "a" * rehearsals + "abc"
    assert bench.sequence.rehearsals == rehearsals
    assert bench.recorder.usual == [number + 2 for number in range(rehearsals + 3)]
    assert (bench.steps, pace.trials) == (3, rehearsals + 3)
