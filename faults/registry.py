"""The registry of active faults, and the protocol of the mechanisms that make them.

The registry is the one place that checks a fault, makes it, and undoes it. A mechanism is an implementation
of one kind of fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

from mrclab.faults.kinds import ALL_KINDS, Fault, Moment, Place, Transition, checked, switches_at
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric


class Mechanism(Protocol):
    """Breaks one place once and restores it. One object serves one fault."""

    def prepare(self, fault: Fault) -> None:
        """Begin to get ready what ``apply`` will need, without waiting long. Raise as ``apply`` does."""

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until what ``prepare`` began is ready. Raise as ``apply`` does."""

    def apply(self, fault: Fault) -> Moment:
        """Break the place. Raise and leave nothing broken, or break all of it."""

    def undo(self, fault: Fault) -> Moment:
        """Restore the place."""

    def renew(self, switch: str) -> None:
        """Write the entries that a switch lost when it ended: a link does not heal when its switch boots."""

    def forget(self) -> None:
        """Regard the place as restored: the switch that held the fault is gone."""

    def transitions(self) -> Sequence[Transition]:
        """Return each time down and up so far, if the fault comes and goes by itself."""

    def close(self) -> None:
        """Stop threads and processes of the fault; restore nothing."""


class SimpleMechanism:
    """Base of mechanisms that need no preparation and do nothing by themselves."""

    def prepare(self, fault: Fault) -> None:
        """Do nothing."""

    def wait_prepared(self, fault: Fault) -> None:
        """Do nothing: it is ready."""

    def renew(self, switch: str) -> None:
        """Do nothing: no switch holds a part of the fault."""

    def forget(self) -> None:
        """Do nothing."""

    def transitions(self) -> Sequence[Transition]:
        """Return nothing."""
        return ()

    def close(self) -> None:
        """Do nothing."""


MakeMechanism = Callable[[], Mechanism]


class Faults:
    """The faults of a running fabric. Not for use from more than one thread."""

    def __init__(
        self,
        fabric: Fabric,
        mechanisms: Mapping[str, MakeMechanism],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Take the mechanism of each kind that this fabric can make.

        ``lock`` is held while something breaks or is restored; mechanisms that run a thread take it too.
        """
        self._fabric = fabric
        self._mechanisms = mechanisms
        self._lock = lock or nullcontext()
        self._prepared: dict[Fault, tuple[Fault, Mechanism]] = {}
        self._active: dict[str, tuple[Fault, Mechanism]] = {}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that this fabric can make."""
        return tuple(self._mechanisms)

    @property
    def active(self) -> Mapping[str, Fault]:
        """The active faults, by place."""
        return {where: fault for where, (fault, _) in self._active.items()}

    def prepare(self, fault: Fault) -> None:
        """Check a fault and begin its preparation, so that ``apply`` is fast.

        This holds up nobody for long. A fault that is prepared already stays so. Raise as ``apply`` does,
        except for places that are faulty at the moment.
        """
        if fault not in self._prepared:
            self._prepared[fault] = self._made_ready(fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until a fault can be made at once, if it was prepared. Raise as ``apply`` does."""
        if fault in self._prepared:
            checked_fault, mechanism = self._prepared[fault]
            mechanism.wait_prepared(checked_fault)

    def drop_prepared(self) -> None:
        """Drop the faults that were prepared and not made."""
        while self._prepared:
            _, (_, mechanism) = self._prepared.popitem()
            mechanism.close()

    def apply(self, fault: Fault) -> Moment:
        """Make a fault and return when it took effect.

        Raise InputError on a fault that makes no sense here or a place that is faulty already, MachineError
        if the machine lacks something; the fabric is then as it was.
        """
        found = self._prepared.pop(fault, None)
        checked_fault, mechanism = found or self._made_ready(fault)
        with self._lock, ExitStack() as refused:
            refused.callback(mechanism.close)
            self._refuse_second(checked_fault)
            moment = mechanism.apply(checked_fault)
            refused.pop_all()
            self._active[checked_fault.where] = checked_fault, mechanism
        return moment

    def undo(self, where: str) -> Moment:
        """Undo the fault of a place and return when that took effect; a dead switch is programmed by then.

        Raise InputError if there is none.
        """
        place, fault, mechanism = self._at(where)
        mechanism.close()  # its thread may be waiting for the lock
        with self._lock:
            moment = mechanism.undo(fault)
            del self._active[place]
        return moment

    def undo_all(self) -> Mapping[str, Moment]:
        """Undo every fault, the last one first; return the moments by place."""
        return {where: self.undo(where) for where in reversed(list(self._active))}

    def forget(self, where: str) -> None:
        """Take a fault as undone without doing anything: its switch lost it when it ended."""
        place, _, mechanism = self._at(where)
        mechanism.close()
        mechanism.forget()
        del self._active[place]

    def renew(self, switch: str) -> None:
        """Write the active faults to a switch that came back empty."""
        for _, mechanism in self._active.values():
            mechanism.renew(switch)

    def transitions(self, where: str) -> Sequence[Transition]:
        """Return how often a flap or a reboot has gone down and come up so far, and when."""
        _, _, mechanism = self._at(where)
        return mechanism.transitions()

    def close(self) -> None:
        """Stop all threads of mechanisms. The fabric is about to go down: nothing is restored."""
        self.drop_prepared()
        for _, mechanism in self._active.values():
            mechanism.close()

    def _made_ready(self, fault: Fault) -> tuple[Fault, Mechanism]:
        fault = checked(self._fabric, fault)
        if fault.kind not in self._mechanisms:
            raise InputError(f"this fabric cannot make {fault.kind}: choose {', '.join(self._mechanisms)}")
        mechanism = self._mechanisms[fault.kind]()
        mechanism.prepare(fault)
        return fault, mechanism

    def _at(self, where: str) -> tuple[str, Fault, Mechanism]:
        a, _, b = where.partition(":")
        for place in (where, f"{b}:{a}"):
            if place in self._active:
                return place, *self._active[place]
        there = f"faults: {', '.join(self._active)}" if self._active else "there are no faults"
        raise InputError(f"{where} has no fault to undo ({there})")

    def _refuse_second(self, fault: Fault) -> None:
        if fault.where in self._active:
            raise InputError(f"{fault.where} is faulty already: restore it first")
        dead = {
            name
            for where, (other, _) in self._active.items()
            if ALL_KINDS[other.kind].place in (Place.SWITCH, Place.PLANE)
            for name in switches_at(self._fabric, where)
        }
        struck = dead.intersection(_nodes(self._fabric, fault))
        if struck:
            raise InputError(f"{min(struck)} is dead already: restore it first")


def _nodes(fabric: Fabric, fault: Fault) -> set[str]:
    """Return the nodes that a fault of a link or of switches touches."""
    if ALL_KINDS[fault.kind].place is Place.LINK:
        return set(fault.where.split(":"))
    return set(switches_at(fabric, fault.where))
