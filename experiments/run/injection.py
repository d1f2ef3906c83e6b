"""Changes of a running fabric: make and undo faults, and change profiles on the hosts' NICs.

All faults are made by the injector, which records each of them. Profiles are changed at the scenario's times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.faults import BUSIEST
from mrclab.experiments.spec.profiles import ProfileChange
from mrclab.faults.kinds import Direction, Fault, Moment
from mrclab.faults.registry import Faults

Note = Callable[[PlannedFault, int, bool], None]


@dataclass(slots=True)
class _Made:
    fault: PlannedFault
    moment: Moment
    undone: Moment | None = None


class Injector:
    """Make planned faults, undo them, and record them in the order in which they were made.

    ``note`` is called with each fault, its time, and False if it was made or True if it was undone.
    ``busiest`` is the link on which to make faults that ask for the busiest link. At the end, also after an
    error, call ``undo_all``. The methods raise the errors of the fabric's `Faults`.
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
        """Begin to prepare a fault. Do nothing if its place is still unknown, or has a fault already."""
        fault = self._placed(fault)
        if fault.place != BUSIEST and not self.broken(fault.place):
            self._faults.prepare(_fault(fault))

    def wait_prepared(self, fault: PlannedFault) -> None:
        """Wait until a prepared fault can be made without delay."""
        self._faults.wait_prepared(_fault(self._placed(fault)))

    def make(self, fault: PlannedFault) -> int:
        """Make a fault; return its number, which ``undo`` takes."""
        fault = self._placed(fault)
        moment = self._faults.apply(_fault(fault))
        self._made.append(_Made(fault, moment))
        self._note(fault, moment.t_after_ns, False)
        return len(self._made) - 1

    def undo(self, number: int) -> None:
        """Undo a fault; do nothing if it was undone before. Raise the errors of the fabric's faults."""
        made = self._made[number]
        if isinstance(made, _Made) and made.undone is None:
            made.undone = self._faults.undo(made.fault.place)
            self._note(made.fault, made.undone.t_after_ns, True)

    def forget(self, number: int) -> None:
        """Remove a fault from the records without undoing it, because its switch ended."""
        made, self._made[number] = self._made[number], None
        if isinstance(made, _Made):
            self._faults.forget(made.fault.place)

    def undo_all(self) -> None:
        """Undo all active faults, and drop unused preparations."""
        self._faults.drop_prepared()
        for number in range(len(self._made)):
            self.undo(number)

    def broken(self, place: str) -> bool:
        """Return True if a fault at this place is active."""
        return any(
            isinstance(made, _Made) and made.undone is None and made.fault.place == place
            for made in self._made
        )

    def possible(self, fault: PlannedFault) -> bool:
        """Return False if the fault's place has a fault already, or if a switch at this place is dead."""
        return self._faults.refusal(_fault(self._placed(fault))) is None

    def add(self, record: FaultRecord) -> None:
        """Add the record of a fault that is not in the scenario."""
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


Clock = Callable[[], int]
Change = Callable[[str, dict[str, Any]], Mapping[str, Any]]
"""A function that sends a request about profiles to a host's NIC, and returns the answer."""


class ProfileSource:
    """Make changes of profiles in order of time. No method waits: call ``act`` at ``next_ns``."""

    def __init__(
        self, changes: Sequence[ProfileChange], hosts: Collection[str], change: Change, start_ns: int
    ) -> None:
        self._coming = sorted(changes, key=lambda entry: entry.at_ns)
        self._hosts = tuple(dict.fromkeys(hosts))
        self._change = change
        self._start_ns = start_ns
        self.notes: list[str] = []
        self.failures: list[str] = []

    @property
    def next_ns(self) -> int | None:
        """Return when the next change is due, or None."""
        return self._start_ns + self._coming[0].at_ns if self._coming else None

    @property
    def over(self) -> bool:
        """Return True if no change is left."""
        return not self._coming

    def act(self, clock: Clock) -> None:
        """Make the changes that are due."""
        while (due := self.next_ns) is not None and due <= clock():
            entry = self._coming.pop(0)
            for host in entry.hosts_of(self._hosts):
                self._note(entry, host, self._change(host, entry.request()))

    def _note(self, entry: ProfileChange, host: str, answer: Mapping[str, Any]) -> None:
        when = f"{entry.at_ns / 1e6:g} ms: {host}"
        failed = [answer["error"]] if "error" in answer else []
        results = answer.get("results", {})
        failed += [f"{ev}: {outcome}" for ev, outcome in results.items() if outcome != "ok"]
        self.failures += [f"profiles at {when}: {why}" for why in failed]
        if not failed:
            count = answer.get("done", answer.get("replaced"))
            self.notes.append(f"profiles at {when}: {entry.do}, {count} EVs")
