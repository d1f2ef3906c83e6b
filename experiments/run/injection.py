"""Making and undoing faults on a running fabric, with a record of each: the one maker of all schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.faults import BUSIEST
from mrclab.faults.model import Direction, Fault, Moment
from mrclab.faults.registry import Faults

Note = Callable[[PlannedFault, int, bool], None]


@dataclass(slots=True)
class _Made:
    fault: PlannedFault
    moment: Moment
    undone: Moment | None = None


class Injector:
    """Makes planned faults, undoes them, and keeps a record of each in the order in which they were made.

    ``note`` is called with each fault that was made (False) or undone (True), and when. ``busiest`` is the
    place that a fault on the busiest link breaks. Call ``undo_all`` whatever happened.
    """

    def __init__(self, faults: Faults, note: Note = lambda fault, t_ns, undone: None) -> None:
        self._faults = faults
        self._note = note
        self._made: list[_Made | FaultRecord | None] = []
        self.busiest: str | None = None

    def _placed(self, fault: PlannedFault) -> PlannedFault:
        if fault.place != BUSIEST or self.busiest is None:
            return fault
        return replace(fault, place=self.busiest)

    def prepare(self, fault: PlannedFault) -> None:
        """Begin to prepare a fault, unless its place is unknown yet, or broken.

        Raise the errors of the fabric's faults.
        """
        fault = self._placed(fault)
        if fault.place != BUSIEST and not self.broken(fault.place):
            self._faults.prepare(_fault(fault))

    def wait_prepared(self, fault: PlannedFault) -> None:
        """Wait until a fault that was prepared can be made at once.

        Raise the errors of the fabric's faults.
        """
        self._faults.wait_prepared(_fault(self._placed(fault)))

    def make(self, fault: PlannedFault) -> int:
        """Make a fault; return its number, by which it is undone.

        Raise the errors of the fabric's faults.
        """
        fault = self._placed(fault)
        moment = self._faults.apply(_fault(fault))
        self._made.append(_Made(fault, moment))
        self._note(fault, moment.t_after_ns, False)
        return len(self._made) - 1

    def undo(self, number: int) -> None:
        """Undo a fault that was made. A second call is harmless. Raise the errors of the fabric's faults."""
        made = self._made[number]
        if isinstance(made, _Made) and made.undone is None:
            made.undone = self._faults.undo(made.fault.place)
            self._note(made.fault, made.undone.t_after_ns, True)

    def forget(self, number: int) -> None:
        """Drop a fault without undoing it: its switch ended, and lost it."""
        made, self._made[number] = self._made[number], None
        if isinstance(made, _Made):
            self._faults.forget(made.fault.place)

    def undo_all(self) -> None:
        """Undo everything that is still broken, and drop the unused preparations."""
        self._faults.drop_prepared()
        for number in range(len(self._made)):
            self.undo(number)

    def broken(self, place: str) -> bool:
        """Return True if a fault at a place is in force."""
        return any(
            isinstance(made, _Made) and made.undone is None and made.fault.place == place
            for made in self._made
        )

    def add(self, record: FaultRecord) -> None:
        """Add a fault that the scenario does not have."""
        self._made.append(record)

    def __len__(self) -> int:
        return sum(made is not None for made in self._made)

    def records(self) -> tuple[FaultRecord, ...]:
        """Return the records of all faults, in the order in which they were made."""
        return tuple(
            made if isinstance(made, FaultRecord) else _record(made)
            for made in self._made
            if made is not None
        )


def _record(made: _Made) -> FaultRecord:
    return FaultRecord(
        kind=made.fault.kind,
        where=made.fault.place,
        t_before_ns=made.moment.t_before_ns,
        t_after_ns=made.moment.t_after_ns,
        restore_before_ns=made.undone.t_before_ns if made.undone else None,
        restore_after_ns=made.undone.t_after_ns if made.undone else None,
        direction=made.fault.direction,
        params=dict(made.fault.params),
    )


def _fault(fault: PlannedFault) -> Fault:
    return Fault(fault.kind, fault.place, cast(Direction, fault.direction), **fault.params)
