"""The boundaries between trials where a switch ends unasked: a load for each record, no more, no less."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from controller.fault_kinds import Moment
from experiments.measure.validity import Load
from experiments.run import trials
from experiments.run.trials import Trials
from experiments.spec.scenario import Scenario, load_scenario
from linux.process_deaths import Death
from switches.bmv2.target import Bmv2Target
from topologies import load_fabric

SWITCH = "p0-t1-0"
DEATH = Death(f"switch {SWITCH}", 5, 6)
QUIET = Load(10**8, 0.4, 0.0, 0.01, 10**6, "sender", 0, 0.1)
STOLEN = replace(QUIET, steal=0.2)


class Target(Bmv2Target):
    """BMv2 that is never started."""

    def last_words(self, name: str) -> str:
        return "signal 9"

    def processes(self) -> dict[str, int]:
        return {SWITCH: 1}


class Faults:
    """Takes every fault, and cannot undo it in a switch that has ended."""

    def __init__(self, fails: Iterator[bool]) -> None:
        self._fails = fails

    def prepare(self, _fault: object) -> None: ...

    def apply(self, _fault: object) -> Moment:
        return Moment(1, 2, "controller")

    def undo(self, *_ends: str) -> Moment:
        if next(self._fails):
            raise grpc.RpcError
        return Moment(3, 4, "controller")

    def forget(self, *_ends: str) -> None: ...


@pytest.fixture
def scenario() -> Scenario:
    return load_scenario("link-kill", topology="tiny", trials=3)


@pytest.mark.parametrize("trial", range(3))
@pytest.mark.parametrize("undone", [False, True], ids=["with the cut", "after the cut"])
@pytest.mark.parametrize("while_settling", [False, True])
def test_every_record_has_its_load(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, trial: int, undone: bool, while_settling: bool
) -> None:
    monkeypatch.setattr(trials, "let_pass", lambda _ns: None)
    deaths: list[Death | None] = [None] * 8
    deaths[2 * trial + while_settling] = DEATH
    fails = [False] * 8
    fails[trial] = not undone and not while_settling
    marks: list[int] = []
    lab: Any = SimpleNamespace(
        fabric=load_fabric("tiny"), target=Target(), faults=Faults(iter(fails)), revive=lambda _name: 1
    )
    watch: Any = SimpleNamespace(wait=lambda _s: deaths.pop(0), add=lambda *_: None)
    recorder: Any = SimpleNamespace(
        mark=lambda: marks.append(1), watch=lambda _pids: None, last_load=lambda: QUIET
    )
    sender: Any = SimpleNamespace(call=lambda *_a, **_k: {"holds": True})
    made = Trials(lab, scenario, "h0", "h3", sender, recorder, watch)
    made.run(lambda _number: None)
    assert [r.where for r in made.records].count(SWITCH) == 1
    assert len(made.failures) == 1
    assert len(marks) - 1 == len(made.records)


@pytest.mark.parametrize(
    ("loads", "places"),
    [
        ([QUIET] * 3, "abc"),
        ([QUIET, STOLEN, STOLEN, QUIET, QUIET], "abbbc"),
        ([STOLEN] * 6, "aaaabc"),  # as many again as there are trials, then no more
    ],
)
def test_a_trial_in_which_the_machine_did_not_keep_up_is_made_again(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch, loads: list[Load], places: str
) -> None:
    monkeypatch.setattr(trials, "_places", lambda *_: tuple("abc"))
    upcoming, steps, marks = iter(loads), list[int](), list[int]()
    lab: Any = SimpleNamespace(
        fabric=load_fabric("tiny"), target=Target(), faults=Faults(iter([False] * 6)), revive=lambda _name: 1
    )
    watch: Any = SimpleNamespace(wait=lambda _s: None, add=lambda *_: None)
    recorder: Any = SimpleNamespace(mark=lambda: marks.append(1), last_load=lambda: next(upcoming))
    sender: Any = SimpleNamespace(call=lambda *_a, **_k: {"holds": True})
    made = Trials(lab, scenario, "h0", "h3", sender, recorder, watch)
    made.run(steps.append)
    assert "".join(r.where for r in made.records) == places
    assert steps == [1, 2, 3]
    assert len(marks) - 1 == len(made.records)
