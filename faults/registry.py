"""The registry of active faults, and the protocol of the mechanisms that make them.

All faults are checked, made and undone by the registry. A mechanism implements one kind of fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, Protocol

from mrclab.faults.kinds import ALL_KINDS, Fault, Moment, Place, Transition, checked, switches_at
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric


class Mechanism(Protocol):
    """A mechanism breaks one place and restores it. Each fault has a separate mechanism object."""

    def prepare(self, fault: Fault) -> None:
        """Begin the preparation of ``apply`` without a long wait. Raise the errors of ``apply``."""

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the preparation is done. Raise the errors of ``apply``."""

    def apply(self, fault: Fault) -> Moment:
        """Break the fault's place, and return when. If an error is raised, nothing is broken."""

    def undo(self, fault: Fault) -> Moment:
        """Restore the fault's place, and return when."""

    def renew(self, switch: str) -> None:
        """Write the fault's entries again to a switch that has booted, so that the fault remains active."""

    def forget(self) -> None:
        """Forget the fault without undoing it, because the switch that held the fault is gone."""

    def transitions(self) -> Sequence[Transition]:
        """Return the cycles up to now of a fault that begins and ends again by itself."""

    def close(self) -> None:
        """Stop the fault's threads and processes. The place is not restored."""


class SimpleMechanism:
    """Base class of mechanisms that need no preparation, no threads and no processes."""

    def prepare(self, fault: Fault) -> None:
        """Do nothing, because there is nothing to prepare."""

    def wait_prepared(self, fault: Fault) -> None:
        """Do nothing, because there is no preparation."""

    def renew(self, switch: str) -> None:
        """Do nothing, because no switch holds a part of the fault."""

    def forget(self) -> None:
        """Do nothing, because no switch holds a part of the fault."""

    def transitions(self) -> Sequence[Transition]:
        """Return an empty tuple, because the fault lasts until it is repaired."""
        return ()

    def close(self) -> None:
        """Do nothing, because there are no threads and processes."""


MakeMechanism = Callable[[], Mechanism]


class Faults:
    """The faults of a running fabric. Only one thread may use this object."""

    def __init__(
        self,
        fabric: Fabric,
        mechanisms: Mapping[str, MakeMechanism],
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        """Set the mechanism of each kind that this fabric can make.

        ``lock`` is held while a place is broken or restored. If a mechanism has a thread, the thread takes
        the lock, too.
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

        The call does not wait long. A second call does nothing. Raise the errors of ``apply``, except the
        error for a place that has a fault already.
        """
        if fault not in self._prepared:
            self._prepared[fault] = self._made_ready(fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until a prepared fault can be made without delay. Raise the errors of ``apply``."""
        if fault in self._prepared:
            checked_fault, mechanism = self._prepared[fault]
            mechanism.wait_prepared(checked_fault)

    def drop_prepared(self) -> None:
        """Drop all faults that were prepared but not made."""
        while self._prepared:
            _, (_, mechanism) = self._prepared.popitem()
            mechanism.close()

    def apply(self, fault: Fault) -> Moment:
        """Make a fault and return when it took effect.

        Raise InputError if the fault is invalid in this fabric, or if its place has a fault already. Raise
        MachineError if the machine lacks something that the fault needs. After an error the fabric is
        unchanged.
        """
        found = self._prepared.pop(fault, None)
        checked_fault, mechanism = found or self._made_ready(fault)
        with self._lock, ExitStack() as refused:
            refused.callback(mechanism.close)
            if why := self.refusal(checked_fault):
                raise InputError(why)
            moment = mechanism.apply(checked_fault)
            refused.pop_all()
            self._active[checked_fault.where] = checked_fault, mechanism
        return moment

    def refusal(self, fault: Fault) -> str | None:
        """Return why a valid fault cannot be made now: its place has a fault, or a switch there is dead."""
        if fault.where in self._active:
            return f"{fault.where} is faulty already: restore it first"
        dead = {
            name
            for where, (other, _) in self._active.items()
            if ALL_KINDS[other.kind].place in (Place.SWITCH, Place.PLANE)
            for name in switches_at(self._fabric, where)
        }
        struck = dead.intersection(_nodes(self._fabric, fault))
        return f"{min(struck)} is dead already: restore it first" if struck else None

    def undo(self, where: str) -> Moment:
        """Undo the fault at a place; return when the place was restored and its switches were programmed.

        Raise InputError if the place has no fault.
        """
        place, fault, mechanism = self._at(where)
        mechanism.close()  # The thread must end first, because it may wait for the lock.
        with self._lock:
            moment = mechanism.undo(fault)
            del self._active[place]
        return moment

    def undo_all(self) -> Mapping[str, Moment]:
        """Undo all faults, the last one first; return the times by place."""
        return {where: self.undo(where) for where in reversed(list(self._active))}

    def forget(self, where: str) -> None:
        """Remove a fault from the registry without undoing it, because its switch ended."""
        place, _, mechanism = self._at(where)
        mechanism.close()
        mechanism.forget()
        del self._active[place]

    def renew(self, switch: str) -> None:
        """Write the active faults to a switch that has booted and is empty."""
        for _, mechanism in self._active.values():
            mechanism.renew(switch)

    def transitions(self, where: str) -> Sequence[Transition]:
        """Return the cycles of a flap or a reboot so far, with their times."""
        _, _, mechanism = self._at(where)
        return mechanism.transitions()

    def close(self) -> None:
        """Stop all threads of mechanisms. Nothing is restored, because the fabric is removed after this."""
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


def _nodes(fabric: Fabric, fault: Fault) -> set[str]:
    """Return the nodes at a fault's place: a link's two ends, or switches."""
    if ALL_KINDS[fault.kind].place is Place.LINK:
        return set(fault.where.split(":"))
    return set(switches_at(fabric, fault.where))
