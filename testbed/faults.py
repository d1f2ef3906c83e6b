"""Faults of every kind on a running lab: one call makes any of them, one undoes it.

The kinds are the rows of ``testbed.fault_kinds.KINDS``. What a kind is made of is a mechanism
(``testbed.fault_mechanisms``): a write to a switch's fault table, an interface taken down, a switch ended, or
another kind again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from controller.faults import FaultInjector, Moment
from linux.errors import InputError
from testbed.fault_kinds import KINDS, Fault, Place, checked, switches_at
from testbed.fault_mechanisms import (
    Carrier,
    Delay,
    Flap,
    Mechanism,
    NicPort,
    Power,
    Reboot,
    Tables,
    Transition,
)
from topologies import Fabric

if TYPE_CHECKING:
    from testbed.lab import Lab


class Faults:
    """The faults of a lab. Not for use from more than one thread."""

    def __init__(self, lab: Lab) -> None:
        self.lab: Lab = lab
        self.tables: FaultInjector = lab.injector
        # Held while something breaks or mends: flaps do so in a thread of their own.
        self.lock: threading.RLock = threading.RLock()
        self._active: dict[str, tuple[Fault, Mechanism]] = {}

    @property
    def active(self) -> Mapping[str, Fault]:
        """The faults in force, by place."""
        return {where: fault for where, (fault, _) in self._active.items()}

    def mechanism(self, kind: str) -> Mechanism:
        """What makes faults of a kind."""
        return _MECHANISMS[kind](self)

    def prepare(self, fault: Fault) -> None:
        """Gets ready what a fault will need, so that getting it does not widen the fault's moment."""
        fault = checked(self.lab.fabric, fault)
        self.mechanism(fault.kind).prepare(fault)

    def apply(self, fault: Fault) -> Moment:
        """Makes a fault and says when it took effect.

        Raises InputError on a fault that makes no sense here or a place that is faulty already, MachineError
        where the machine lacks something; the lab is as it was then.
        """
        fault = checked(self.lab.fabric, fault)
        with self.lock:
            self._refuse(fault)
            mechanism = self.mechanism(fault.kind)
            moment = mechanism.apply(fault)
            self._active[fault.where] = fault, mechanism
        return moment

    def undo(self, where: str) -> Moment:
        """Undoes the fault of a place and says when that took effect; a dead switch is programmed by then.

        Raises InputError where there is none.
        """
        found = [place for place in self._active if _same(place, where)]
        if not found:
            raise InputError(f"{where} has no fault to undo ({self._there_are()})")
        fault, mechanism = self._active[found[0]]
        mechanism.close()  # what goes on in its own time may be waiting for the lock
        with self.lock:
            moment = mechanism.undo(fault)
            del self._active[found[0]]
        return moment

    def undo_all(self) -> Mapping[str, Moment]:
        """Undoes every fault, the last one first."""
        return {where: self.undo(where) for where in reversed(list(self._active))}

    def forget(self, where: str) -> None:
        """Takes a link as healed without doing anything: its switch lost the fault when it ended."""
        fault, _ = self._active.pop(where)
        self.tables.forget(*fault.where.split(":"))

    def transitions(self, where: str) -> Sequence[Transition]:
        """How often a flap or a reboot has gone down and come up so far, and when."""
        _, mechanism = self._active[where]
        return mechanism.transitions if isinstance(mechanism, Flap | Reboot) else ()

    def close(self) -> None:
        """Ends what goes on by itself. The lab is about to go down: nothing is mended."""
        for _, mechanism in self._active.values():
            mechanism.close()

    def _refuse(self, fault: Fault) -> None:
        if fault.where in self._active:
            raise InputError(f"{fault.where} is faulty already: restore it first")
        dead = {
            name
            for where, (other, _) in self._active.items()
            if KINDS[other.kind].place in (Place.SWITCH, Place.PLANE)
            for name in switches_at(self.lab.fabric, where)
        }
        hit = dead.intersection(_touched(self.lab.fabric, fault))
        if hit:
            raise InputError(f"{min(hit)} is dead already: restore it first")

    def _there_are(self) -> str:
        return f"faults: {', '.join(self._active)}" if self._active else "there are no faults"


_MECHANISMS: Mapping[str, Callable[[Faults], Mechanism]] = {
    "blackhole": lambda faults: Tables(faults.tables),
    "loss": lambda faults: Tables(faults.tables),
    "corruption": lambda faults: Tables(faults.tables),
    "rate": lambda faults: Tables(faults.tables),
    "carrier": lambda faults: Carrier(faults.lab),
    "port-down": lambda faults: NicPort(faults.lab),
    "delay": lambda faults: Delay(faults.lab),
    "flap": lambda faults: Flap(faults.mechanism, faults.lock),
    "switch-death": lambda faults: Power(faults.lab, faults.tables),
    "switch-reboot": lambda faults: Reboot(faults.lab, faults.tables, faults.lock),
    "plane-death": lambda faults: Power(faults.lab, faults.tables),
}
"""What makes faults of each kind of ``testbed.fault_kinds``."""


def _same(place: str, where: str) -> bool:
    a, _, b = where.partition(":")
    return place in (where, f"{b}:{a}")


def _touched(fabric: Fabric, fault: Fault) -> set[str]:
    place = KINDS[fault.kind].place
    if place is Place.LINK:
        return set(fault.where.split(":"))
    return set(switches_at(fabric, fault.where))
