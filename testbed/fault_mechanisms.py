"""What faults are made of: each mechanism breaks and mends, and says when."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from controller.faults import FaultInjector, FaultKind, LinkFault, Moment
from linux.errors import InputError, MachineError
from testbed import links
from testbed.fault_kinds import Fault, switches_at
from testbed.long_wire import LongWire, WireEnd
from topologies import Link

if TYPE_CHECKING:
    from testbed.lab import Lab

LOGGER = logging.getLogger(__name__)


class Mechanism(Protocol):
    """Breaks one place, once, and mends it again. ``apply`` raises and leaves nothing, or has done all."""

    def prepare(self, fault: Fault) -> None:
        """Gets ready what ``apply`` will need."""

    def apply(self, fault: Fault) -> Moment:
        """Breaks it."""

    def undo(self, fault: Fault) -> Moment:
        """Mends it."""

    def close(self) -> None:
        """Ends what goes on by itself, and mends nothing."""


class _Plain:
    def prepare(self, fault: Fault) -> None:
        """Nothing has to be ready."""

    def close(self) -> None:
        """Nothing goes on."""


@dataclass(frozen=True, slots=True)
class Transition:
    """Once down and, unless that is still to come, up again."""

    down: Moment
    up: Moment | None = None


def link_fault(fault: Fault) -> LinkFault:
    """A fault of a link as the controller writes it into a fault table."""
    a, b = fault.where.split(":")
    return LinkFault(a, b, cast(FaultKind, fault.kind), fault.direction, fault.ratio)


class Tables(_Plain):
    """Entries of a switch's fault table: one P4Runtime write each way."""

    def __init__(self, injector: FaultInjector) -> None:
        self._injector = injector

    def prepare(self, fault: Fault) -> None:
        """Opens the channel to the switch."""
        self._injector.prepare(link_fault(fault))

    def apply(self, fault: Fault) -> Moment:
        """Writes the entries."""
        return self._injector.apply(link_fault(fault))

    def undo(self, fault: Fault) -> Moment:
        """Deletes them."""
        return self._injector.undo(*fault.where.split(":"))


class _Interface(_Plain):
    """An interface that is taken down; which one it is, is the subclass's to say."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def _cable(self, link: Link) -> links.Cable:
        return next(c for c in links.cables(self._lab.fabric, self._lab.network.names) if c.link == link)

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        """The end to take down, and the other one."""
        raise NotImplementedError

    def apply(self, fault: Fault) -> Moment:
        """Takes the interface down."""
        end, _ = self._ends(fault)
        return Moment(*links.set_up(end.namespace, end.ifname, up=False), "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Brings it up, and waits until both ends of the link carry frames again."""
        end, other = self._ends(fault)
        before, _ = links.set_up(end.namespace, end.ifname)
        links.settle((e.namespace, e.ifname) for e in (end, other))
        return Moment(before, time.monotonic_ns(), "testbed")


class Carrier(_Interface):
    """Carrier loss: one end of a cable is down, so that the other has no carrier.

    The end that goes down is the one farther from the hosts: a NIC sees its carrier go, as it would with a
    pulled cable. BMv2 freezes when an interface of its own goes down, all ports of it, until a frame comes in
    on that one: there it is the NIC's end of a host link, and the links between switches are refused.
    """

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        link = self._lab.fabric.link(*fault.where.split(":"))
        cable = self._cable(link)
        if self._lab.target.name != "bmv2":
            return cable.b, cable.a
        if link.kind != "host":
            raise InputError(
                f"BMv2 stops forwarding when an interface of its own goes down: use blackhole on {link.name}"
            )
        return cable.a, cable.b


class NicPort(_Interface):
    """A port of a NIC that its own host takes down; its T0 sees the carrier go."""

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        link = next(link for link in self._lab.fabric.links if link.a.ifname == fault.where)
        cable = self._cable(link)
        return cable.a, cable.b


class Delay(_Interface):
    """A link that takes longer each way: by netem queues at its ends, or else by a process of ours.

    BMv2 takes frames in before that process can, so there it is netem or nothing.
    """

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab)
        self._wire: LongWire | None = None
        self._ended: tuple[int, int] | None = None

    def _cable_of(self, fault: Fault) -> links.Cable:
        return self._cable(self._lab.fabric.link(*fault.where.split(":")))

    def apply(self, fault: Fault) -> Moment:
        """Makes the link longer."""
        cable = self._cable_of(fault)
        try:
            return Moment(*links.set_delay(cable, self._lab.network.names.fabric, fault.delay_ns), "testbed")
        except MachineError:
            if self._lab.target.name == "bmv2":
                raise
        mtu = cable.link.profile.mtu_bytes
        ends = tuple(WireEnd(end.namespace, end.ifname, mtu) for end in (cable.a, cable.b))
        self._wire = LongWire(ends, fault.delay_ns)
        return Moment(*self._wire.since_ns, "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Makes it as long as it was."""
        self.close()
        if self._ended is not None:
            return Moment(*self._ended, "testbed")
        cable = self._cable_of(fault)
        return Moment(*links.set_delay(cable, self._lab.network.names.fabric, None), "testbed")

    def close(self) -> None:
        """Ends the process, if there is one, and with it the delay."""
        if self._wire is not None:
            self._ended = self._wire.close()
            self._wire = None


class Power(_Plain):
    """The end of switches: their frames drop, their tables, counters and queues are lost."""

    def __init__(self, lab: Lab, injector: FaultInjector) -> None:
        self._lab = lab
        self._injector = injector

    def _names(self, fault: Fault) -> tuple[str, ...]:
        return switches_at(self._lab.fabric, fault.where)

    def apply(self, fault: Fault) -> Moment:
        """Ends them, all in one call."""
        before, after = self._lab.target.kill(*self._names(fault))
        return Moment(before, after, "switch" if self._lab.target.name == "ebpf" else "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Boots them, waits until they hold their entries, and breaks their broken links again."""
        before = time.monotonic_ns()
        names = self._names(fault)
        self._lab.revive(*names)
        for name in names:
            self._injector.renew(name)
        return Moment(before, time.monotonic_ns(), "testbed")


class _OwnTime:
    """Something that goes on in a thread of its own until it is stopped."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def _start(self, what: str, work: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                work()
            except Exception:  # the lab is going down, or a switch has ended: undoing will tell
                LOGGER.warning("%s came to an end", what, exc_info=True)

        self._thread = threading.Thread(target=guarded, name=what, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops it."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()


class Reboot(_OwnTime):
    """A switch's end, and its start a while later."""

    def __init__(self, lab: Lab, injector: FaultInjector, lock: threading.RLock) -> None:
        super().__init__(lock)
        self._power = Power(lab, injector)
        self.transitions: list[Transition] = []

    def prepare(self, fault: Fault) -> None:
        """Nothing has to be ready."""

    def apply(self, fault: Fault) -> Moment:
        """Ends the switch and has it boot in due time."""
        moment = self._power.apply(fault)
        self.transitions.append(Transition(moment))

        def later() -> None:
            if not self._stop.wait(fault.down_ns / 1e9):
                self._boot(fault)

        self._start(f"reboot of {fault.where}", later)
        return moment

    def undo(self, fault: Fault) -> Moment:
        """Boots the switch now where it is still down; says when it was back."""
        self.close()
        return self.transitions[-1].up or self._boot(fault)

    def _boot(self, fault: Fault) -> Moment:
        with self._lock:
            moment = self._power.undo(fault)
            self.transitions[-1] = replace(self.transitions[-1], up=moment)
        return moment


class Flap(_OwnTime):
    """Another kind, made and undone in every period. Down first."""

    def __init__(self, mechanism: Callable[[str], Mechanism], lock: threading.RLock) -> None:
        super().__init__(lock)
        self._mechanism = mechanism
        self.transitions: list[Transition] = []

    def _inner(self, fault: Fault) -> tuple[Mechanism, Fault]:
        return self._mechanism(fault.of), replace(fault, kind=fault.of)

    def prepare(self, fault: Fault) -> None:
        """Gets ready what the first time down will need."""
        mechanism, inner = self._inner(fault)
        mechanism.prepare(inner)

    def apply(self, fault: Fault) -> Moment:
        """Breaks the link for the first time, and goes on by itself."""
        mechanism, inner = self._inner(fault)
        moment = mechanism.apply(inner)
        self.transitions.append(Transition(moment))
        self._start(f"flap of {fault.where}", lambda: self._go_on(mechanism, inner))
        return moment

    def _go_on(self, mechanism: Mechanism, fault: Fault) -> None:
        start = time.monotonic_ns()
        while True:
            if self._wait_until(start + fault.down_ns):
                return
            self._up(mechanism, fault)
            start += fault.period_ns
            if self._wait_until(start):
                return
            with self._lock:
                self.transitions.append(Transition(mechanism.apply(fault)))

    def _up(self, mechanism: Mechanism, fault: Fault) -> Moment:
        with self._lock:
            moment = mechanism.undo(fault)
            self.transitions[-1] = replace(self.transitions[-1], up=moment)
        return moment

    def _wait_until(self, moment_ns: int) -> bool:
        return self._stop.wait(max(0, moment_ns - time.monotonic_ns()) / 1e9)

    def undo(self, fault: Fault) -> Moment:
        """Stops it and heals the link, if it is down at the moment; says when it was healed last."""
        self.close()
        mechanism, inner = self._inner(fault)
        return self.transitions[-1].up or self._up(mechanism, inner)
