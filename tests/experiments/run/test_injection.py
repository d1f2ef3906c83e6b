"""The injector makes faults on a fake fabric. The tests check its calls and its records."""

from typing import Any

import pytest

from mrclab.controller.queues import QueuePolicy
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.run.fault_run import TimedSource
from mrclab.experiments.run.injection import Injector
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.faults import BUSIEST
from mrclab.faults.kinds import Fault, Moment
from mrclab.simulator.faults import registry_of
from mrclab.simulator.network import Network
from mrclab.topologies import load_fabric

MS = 1_000_000
LINK = "p0-t0-0:p0-t1-0"


class Paper:
    """A fake of the functions that break a fabric. It records its calls."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.broken: set[str] = set()
        self.now_ns = 0

    def prepare(self, fault: Fault) -> None:
        self.done.append(f"prepare {fault.where}")

    def wait_prepared(self, fault: Fault) -> None:
        self.done.append(f"wait {fault.where}")

    def drop_prepared(self) -> None: ...

    def refusal(self, fault: Fault) -> str | None:
        return "faulty already" if fault.where in self.broken else None

    def apply(self, fault: Fault) -> Moment:
        self.broken.add(fault.where)
        self.done.append(f"{fault.kind} {fault.where}")
        return Moment(self.now_ns, self.now_ns + 10, "testbed")

    def undo(self, where: str) -> Moment:
        self.broken.remove(where)
        self.done.append(f"undo {where}")
        return Moment(self.now_ns, self.now_ns + 10, "testbed")

    def forget(self, where: str) -> None:
        self.done.append(f"forget {where}")


def timed(*faults: PlannedFault) -> tuple[TimedSource, Injector, Paper]:
    paper = Paper()
    injector = Injector(paper)
    return TimedSource(injector, faults, 1000 * MS), injector, paper


def act(source: Any, paper: Paper, now_ns: int) -> None:
    paper.now_ns = now_ns
    source.act(lambda: now_ns)


def test_faults_come_and_go_when_they_are_due() -> None:
    source, injector, paper = timed(PlannedFault("blackhole", LINK, 100 * MS, 200 * MS))
    assert source.next_ns == 1100 * MS
    act(source, paper, 1099 * MS)
    assert paper.done == []
    act(source, paper, 1100 * MS)
    assert injector.broken(LINK)
    act(source, paper, 1200 * MS)
    assert paper.done == [f"blackhole {LINK}", f"undo {LINK}"]
    assert source.over
    (record,) = injector.records()
    assert (record.t_before_ns, record.restore_before_ns) == (1100 * MS, 1200 * MS)
    assert source.late_ns == 0


def test_it_says_how_late_the_latest_was() -> None:
    source, _, paper = timed(
        PlannedFault("blackhole", LINK, 100 * MS, 200 * MS), PlannedFault("loss", "x:y", 300 * MS, None)
    )
    for now_ms in (1180, 1230, 1301):
        act(source, paper, now_ms * MS)
    assert source.late_ns == 80 * MS


def test_a_fault_is_prepared_when_the_one_before_it_has_been_made() -> None:
    source, injector, paper = timed(
        PlannedFault("blackhole", LINK, 100 * MS, 200 * MS), PlannedFault("delay", "x:y", 300 * MS, None)
    )
    act(source, paper, 1100 * MS)
    assert paper.done == [f"blackhole {LINK}", "prepare x:y"]
    injector.prepare(PlannedFault("delay", LINK, 400 * MS, None))
    assert paper.done[-1] == "prepare x:y"  # a place that is broken may be prepared later


def test_what_is_due_at_the_start_is_made_before_it() -> None:
    source, injector, paper = timed(
        PlannedFault("delay", LINK, 0, 300 * MS), PlannedFault("blackhole", "x:y", 100 * MS, None)
    )
    paper.now_ns = 900 * MS
    source.make_first()
    assert (paper.done, source.late_ns) == ([f"delay {LINK}", "prepare x:y"], 0)
    source.start_ns = 1010 * MS  # the start was postponed
    assert source.next_ns == 1110 * MS
    for now_ms in (1110, 1310):
        act(source, paper, now_ms * MS)
    assert paper.done[2:] == ["blackhole x:y", f"undo {LINK}"]
    assert injector.records()[0].t_before_ns == 900 * MS
    assert source.late_ns == 0


def test_undoing_comes_first_and_a_place_that_is_broken_is_left_alone() -> None:
    source, injector, paper = timed(
        PlannedFault("loss", LINK, 0, 200 * MS),
        PlannedFault("rate", LINK, 100 * MS, 150 * MS),
        PlannedFault("blackhole", LINK, 200 * MS, 300 * MS),
    )
    for now_ms in (1000, 1100, 1200, 1300):
        act(source, paper, now_ms * MS)
    made = [f"loss {LINK}", f"undo {LINK}", f"blackhole {LINK}", f"undo {LINK}"]
    assert [done for done in paper.done if not done.startswith("prepare")] == made
    assert (source.skipped, len(injector)) == (1, 2)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("switch-death", "p0-t1-0"), ("blackhole", LINK)),
        (("plane-death", "p0"), ("switch-death", "p0-t1-0")),
        (("switch-death", "p0-t1-0"), ("plane-death", "p0")),
        (("loss", LINK), ("blackhole", BUSIEST)),
    ],
)
def test_a_fault_at_a_dead_switch_or_at_a_broken_busiest_link_is_left_out(
    first: tuple[str, str], second: tuple[str, str]
) -> None:
    faults = registry_of(Network(load_fabric("tiny"), QueuePolicy()))
    injector = Injector(faults)
    injector.busiest = LINK
    planned = [
        PlannedFault(*first, 0, 200 * MS),
        PlannedFault(*second, 100 * MS, 150 * MS),
        PlannedFault(*second, 300 * MS, None),
    ]
    source = TimedSource(injector, planned, 0)
    for now_ms in (0, 100, 150, 200, 300):
        source.act(lambda at_ns=now_ms * MS: at_ns)
    assert (source.skipped, source.over) == (1, True)
    assert [record.kind for record in injector.records()] == [first[0], second[0]]


def test_the_busiest_link_gets_its_name_before_it_breaks() -> None:
    source, injector, paper = timed(PlannedFault("blackhole", BUSIEST, 0, None))
    injector.prepare(PlannedFault("blackhole", BUSIEST, 0, None))
    injector.busiest = LINK
    act(source, paper, 1000 * MS)
    injector.undo_all()
    assert paper.done == [f"blackhole {LINK}", f"undo {LINK}"]


def test_a_fault_that_its_switch_lost_leaves_no_record() -> None:
    _, injector, paper = timed()
    first = injector.make(PlannedFault("blackhole", LINK, 0, None))
    injector.make(PlannedFault("loss", "x:y", 0, None, params={"ratio": 0.5}))
    injector.forget(first)
    injector.add(FaultRecord("switch-death", "p0-t1-0", 1, 2))
    injector.undo_all()
    assert paper.done[-2:] == [f"forget {LINK}", "undo x:y"]
    assert [record.kind for record in injector.records()] == ["loss", "switch-death"]
    assert injector.records()[0].params == {"ratio": 0.5}
