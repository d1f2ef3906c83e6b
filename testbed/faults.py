"""Faults of every kind on a running lab: one call makes any of them, one undoes it.

The kinds are the rows of ``KINDS``. What a kind is made of is a mechanism (``testbed.fault_mechanisms``): a
write to a switch's fault table, an interface taken down, a switch ended, or another kind again and again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import TYPE_CHECKING

from controller.faults import DIRECTIONS, Direction, FaultInjector, Moment
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
from topologies import Fabric, InputError

if TYPE_CHECKING:
    from testbed.lab import Lab

MIN_PERIOD_NS = 10_000_000


class Place(Enum):
    """What a fault can break, and how that is written."""

    LINK = "link, such as p0-t0-0:p0-t1-1"
    NIC_PORT = "NIC port, such as h0-eth1"
    SWITCH = "switch, such as p0-t1-0"
    PLANE = "plane, such as p0"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to make. What a kind has no use for is left at its default.

    ``direction`` is that of the frames it hits: ``up`` is away from the hosts. ``ratio`` is above 0 and at
    most 1: the share of frames lost or corrupted, or of the link's rate that is left. ``delay_ns`` is added
    each way. ``period_ns`` and ``down_ns`` are those of a flap, which is of the kind ``of``; a reboot takes
    ``down_ns``.
    """

    kind: str
    where: str
    direction: Direction = "both"
    ratio: float = 1.0
    delay_ns: int = 1_000_000
    period_ns: int = 1_000_000_000
    down_ns: int = 500_000_000
    of: str = "blackhole"


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of kinds: what it breaks, what it does, and what it ``takes`` besides."""

    name: str
    place: Place
    does: str
    make: Callable[[Faults], Mechanism]
    takes: tuple[str, ...] = ()


def _kinds(*kinds: Kind) -> Mapping[str, Kind]:
    return {kind.name: kind for kind in kinds}


KINDS = _kinds(
    Kind(
        "blackhole",
        Place.LINK,
        "drops every frame; carrier stays up, so nobody is told",
        lambda faults: Tables(faults.tables),
        ("direction",),
    ),
    Kind(
        "loss",
        Place.LINK,
        "drops a share of the frames, at random",
        lambda faults: Tables(faults.tables),
        ("direction", "ratio"),
    ),
    Kind(
        "corruption",
        Place.LINK,
        "flips a bit of a share of the frames",
        lambda faults: Tables(faults.tables),
        ("direction", "ratio"),
    ),
    Kind(
        "rate",
        Place.LINK,
        "leaves a share of the link's rate and loses what is more",
        lambda faults: Tables(faults.tables),
        ("direction", "ratio"),
    ),
    Kind(
        "carrier",
        Place.LINK,
        "takes the carrier away, as a pulled cable does",
        lambda faults: Carrier(faults.lab),
    ),
    Kind(
        "port-down",
        Place.NIC_PORT,
        "takes a port of a NIC down, as its own host would",
        lambda faults: NicPort(faults.lab),
    ),
    Kind(
        "delay",
        Place.LINK,
        "makes the link longer, each way (needs the kernel's sch_netem)",
        lambda faults: Delay(faults.lab),
        ("delay_ns",),
    ),
    Kind(
        "flap",
        Place.LINK,
        "breaks the link for a while in every period",
        lambda faults: Flap(faults.mechanism, faults.lock),
        ("direction", "period_ns", "down_ns", "of"),
    ),
    Kind(
        "switch-death",
        Place.SWITCH,
        "ends a switch; undoing it boots it again, empty, to be programmed anew",
        lambda faults: Power(faults.lab, faults.tables),
    ),
    Kind(
        "switch-reboot",
        Place.SWITCH,
        "ends a switch, which boots again by itself",
        lambda faults: Reboot(faults.lab, faults.tables, faults.lock),
        ("down_ns",),
    ),
    Kind(
        "plane-death",
        Place.PLANE,
        "ends every switch of a plane at once",
        lambda faults: Power(faults.lab, faults.tables),
    ),
)
FLAP_OF = ("blackhole", "carrier")
_OPTIONS = tuple(f.name for f in fields(Fault) if f.name not in ("kind", "where"))
_DEFAULTS = Fault("", "")


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
        return KINDS[kind].make(self)

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


def checked(fabric: Fabric, fault: Fault) -> Fault:
    """The fault with its place as it is written in the fabric. Pure.

    Raises InputError, one line that says what to write instead.
    """
    kind = KINDS.get(fault.kind)
    if kind is None:
        raise InputError(f"no fault kind '{fault.kind}': choose {', '.join(KINDS)}")
    for option in _OPTIONS:
        if option not in kind.takes and getattr(fault, option) != getattr(_DEFAULTS, option):
            takes = ", ".join(flag(name) for name in kind.takes) or "no options"
            raise InputError(f"{kind.name} has no use for {flag(option)}: it takes {takes}")
    if fault.direction not in DIRECTIONS:
        raise InputError(f"a direction is both, up or down, not '{fault.direction}'")
    if not 0 < fault.ratio <= 1:
        raise InputError(f"a ratio is above 0 and at most 1, not {fault.ratio}")
    if "delay_ns" in kind.takes and fault.delay_ns <= 0:
        raise InputError("a delay is longer than nothing")
    if "down_ns" in kind.takes and fault.down_ns <= 0:
        raise InputError("the time down is longer than nothing")
    if kind.name == "flap":
        _check_flap(fault)
    where = _place(fabric, kind.place, fault.where)
    if where is None:
        raise InputError(
            f"no {kind.place.value.split(',')[0]} '{fault.where}' in {fabric.name}: give a {kind.place.value}"
        )
    return Fault(**{**{name: getattr(fault, name) for name in _OPTIONS}, "kind": kind.name, "where": where})


def _check_flap(fault: Fault) -> None:
    if fault.of not in FLAP_OF:
        raise InputError(f"a flap is of {' or '.join(FLAP_OF)}, not '{fault.of}'")
    if fault.of == "carrier" and fault.direction != "both":
        raise InputError("carrier is lost both ways: no direction")
    if fault.period_ns < MIN_PERIOD_NS or fault.down_ns >= fault.period_ns:
        raise InputError("a flap's period is 10 ms or longer, and longer than the time down in it")


def flag(option: str) -> str:
    """A field of a fault as an option of the command line."""
    return "--" + option.removesuffix("_ns")


def _place(fabric: Fabric, place: Place, where: str) -> str | None:
    if place is Place.LINK:
        a, _, b = where.partition(":")
        return fabric.link(a, b).name if fabric.has_link(a, b) else None
    if place is Place.NIC_PORT:
        return where if any(where == port.ifname for host in fabric.hosts for port in host.ports) else None
    if place is Place.SWITCH:
        return where if any(where == switch.name for switch in fabric.switches) else None
    return where if where in {f"p{plane}" for plane in range(fabric.planes)} else None


def _same(place: str, where: str) -> bool:
    a, _, b = where.partition(":")
    return place in (where, f"{b}:{a}")


def switches_at(fabric: Fabric, where: str) -> tuple[str, ...]:
    """The switches that a place stands for: itself, or all of a plane."""
    return tuple(s.name for s in fabric.switches if where in (s.name, f"p{s.plane}"))


def _touched(fabric: Fabric, fault: Fault) -> set[str]:
    place = KINDS[fault.kind].place
    if place is Place.LINK:
        return set(fault.where.split(":"))
    return set(switches_at(fabric, fault.where))
