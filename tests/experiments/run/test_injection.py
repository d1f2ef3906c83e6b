"""The injector on a fabric of paper: what it does when, and that it owns up to being late."""

from typing import Any

from controller.fault_kinds import Fault, Moment
from experiments.run.injection import Injector
from experiments.spec.fault_schedule import PlannedFault

MS = 1_000_000
LINK = "p0-t0-0:p0-t1-0"


class Paper:
    """Notes what is asked of it; stands in for a running fabric and for what breaks it."""

    def __init__(self) -> None:
        self.faults = self
        self.done: list[str] = []
        self.now_ns = 0

    def prepare(self, fault: Fault) -> None:
        self.done.append(f"prepare {fault.where}")

    def apply(self, fault: Fault) -> Moment:
        self.done.append(f"{fault.kind} {fault.where}")
        return Moment(self.now_ns, self.now_ns + 10, "testbed")

    def undo(self, where: str) -> Moment:
        self.done.append(f"undo {where}")
        return Moment(self.now_ns, self.now_ns + 10, "testbed")


def injector(*faults: PlannedFault) -> tuple[Injector, Any]:
    paper = Paper()
    return Injector(paper, faults, 1000 * MS), paper  # type: ignore[arg-type]


def act(made: Injector, paper: Paper, now_ns: int) -> None:
    paper.now_ns = now_ns
    made.act(lambda: now_ns)


def test_faults_come_and_go_when_they_are_due() -> None:
    made, paper = injector(PlannedFault("blackhole", LINK, 100 * MS, 200 * MS))
    assert made.next_ns == 1100 * MS
    act(made, paper, 1099 * MS)
    assert paper.done == []
    act(made, paper, 1100 * MS)
    act(made, paper, 1200 * MS)
    assert paper.done == [f"blackhole {LINK}", f"undo {LINK}"]
    (record,) = made.records()
    assert (record.t_before_ns, record.restore_before_ns) == (1100 * MS, 1200 * MS)
    assert made.late_ns == 0


def test_it_says_how_late_the_latest_was() -> None:
    made, paper = injector(
        PlannedFault("blackhole", LINK, 100 * MS, 200 * MS), PlannedFault("loss", "x:y", 300 * MS, None)
    )
    act(made, paper, 1180 * MS)
    act(made, paper, 1230 * MS)
    act(made, paper, 1301 * MS)
    assert made.late_ns == 80 * MS
