"""Changes of a running fabric: faults made and undone, and profiles changed on the hosts' NICs.

The injector is the one maker of faults for all schedules, and records each. Changes of profiles are carried
out at the times that the scenario asks for.
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


Clock = Callable[[], int]
Change = Callable[[str, dict[str, Any]], Mapping[str, Any]]
"""Sends a host's NIC a request about its profiles, and returns the answer."""


class ProfileSource:
    """Makes the changes in order of time. It never waits: ``next_ns`` is when the next one is due."""

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
        """Return when the next change is due."""
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
