"""Make each kind of fault on a running fabric of mrclab's switches. `mrclab.faults` defines the kinds.

Most faults of links are entries in a switch's fault table. Others take an interface down or delay a link.
Faults of switches stop and start the switch. A ``Cycle`` is a fault with phases, which are faults of other
kinds. A thread begins and ends the phases. Routers have separate mechanisms (`mrclab.testbed.frr.faults`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mrclab.controller.fault_tables import TABLE_KINDS, FaultTables
from mrclab.faults.kinds import KINDS, Fault, Moment, Phase, Transition, kind_named, phase_fault, switches_at
from mrclab.faults.registry import Faults, MakeMechanism, Mechanism, SimpleMechanism
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import PORT_DOWN_HALTS, Capabilities
from mrclab.switches.target import SwitchTarget
from mrclab.testbed import links
from mrclab.testbed.delays.long_wire import LongWires, wire_ends
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, Link


class TableEntries(SimpleMechanism):
    """A fault as entries in a switch's fault table: one P4Runtime write to make it, one to undo it."""

    def __init__(self, tables: FaultTables) -> None:
        self._tables = tables
        self._written: Fault | None = None

    def prepare(self, fault: Fault) -> None:
        """Start connecting to the switch."""
        self._tables.connect(fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the switch answers."""
        self._tables.wait_connected(fault)

    def apply(self, fault: Fault) -> Moment:
        """Write the fault's entries to the switch."""
        moment = self._tables.insert(fault)
        self._written = fault
        return moment

    def undo(self, fault: Fault) -> Moment:
        """Delete the fault's entries from the switch."""
        moment = self._tables.delete(fault)
        self._written = None
        return moment

    def renew(self, switch: str) -> None:
        """If the fault's entries were on this restarted switch, write the entries again."""
        if self._written is not None and self._tables.switch_of(self._written) == switch:
            self._tables.insert(self._written)

    def forget(self) -> None:
        """Record that the switch has lost the fault's entries."""
        self._written = None


class _Interface(SimpleMechanism):
    """Base class of faults that take an interface down. The subclass chooses the interface."""

    def __init__(self, fabric: Fabric, names: Names) -> None:
        self._fabric = fabric
        self._names = names

    def _cable(self, link: Link) -> links.Cable:
        return next(c for c in links.cables(self._fabric, self._names) if c.link == link)

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        """Return the end to take down, and the other end."""
        raise NotImplementedError

    def apply(self, fault: Fault) -> Moment:
        """Take the interface down."""
        end, _ = self._ends(fault)
        return Moment(*links.set_up(end.namespace, end.ifname, up=False), "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Bring the interface up and wait until both ends of the link carry frames again."""
        end, other = self._ends(fault)
        before, _ = links.set_up(end.namespace, end.ifname)
        links.settle((e.namespace, e.ifname) for e in (end, other))
        return Moment(before, time.monotonic_ns(), "testbed")


class Carrier(_Interface):
    """Carrier loss: one end of a cable is taken down, so that the other end loses its carrier.

    The end farther from the hosts is taken down: a NIC then loses its carrier, as with a pulled cable. If the
    target's switches need all their interfaces up, the NIC's end is taken down. With such a target, a link
    between switches cannot have this fault: `prepare` raises InputError.
    """

    def __init__(self, fabric: Fabric, names: Names, capabilities: Capabilities) -> None:
        super().__init__(fabric, names)
        self._capabilities = capabilities

    def prepare(self, fault: Fault) -> None:
        """Raise InputError if the link cannot lose its carrier."""
        self._ends(fault)

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        link = self._fabric.link(*fault.where.split(":"))
        cable = self._cable(link)
        if self._capabilities.ports_can_go_down:
            return cable.b, cable.a
        if link.kind != "host":
            raise InputError(f"{PORT_DOWN_HALTS}: use blackhole on {link.name}")
        return cable.a, cable.b


class NicPort(_Interface):
    """A NIC port that its host takes down. The T0 at its other end loses the carrier."""

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        link = next(link for link in self._fabric.links if link.a.ifname == fault.where)
        cable = self._cable(link)
        return cable.a, cable.b


class Delay(_Interface):
    """A delay in both directions, by netem queues at the link's ends or, without netem, by a process."""

    def __init__(self, fabric: Fabric, names: Names, capabilities: Capabilities) -> None:
        super().__init__(fabric, names)
        self._capabilities = capabilities
        self._wire: LongWires | None = None
        self._ended: tuple[int, int] | None = None

    def _cable_of(self, fault: Fault) -> links.Cable:
        return self._cable(self._fabric.link(*fault.where.split(":")))

    def prepare(self, fault: Fault) -> None:
        """Without netem, start the delaying process. Raise InputError if the link already has a delay."""
        cable = self._cable_of(fault)
        if cable.link.profile.delay_ns:
            raise InputError(f"link {cable.link.name} has a delay already: change it in the topology")
        if not links.has_netem():
            ends = wire_ends(cable, fault.delay_ns)
            self._wire = LongWires(ends, egress=self._capabilities.takes_frames_first)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the delaying process, if there is one, is ready."""
        if self._wire is not None:
            self._wire.wait_ready()

    def apply(self, fault: Fault) -> Moment:
        """Begin to delay the link's frames."""
        if self._wire is not None:
            return Moment(*self._wire.begin(), "testbed")
        return Moment(*links.set_delay(self._cable_of(fault), self._names.fabric, fault.delay_ns), "testbed")

    def undo(self, fault: Fault) -> Moment:
        """End the delay."""
        self.close()
        if self._ended is not None:
            return Moment(*self._ended, "testbed")
        cable = self._cable_of(fault)
        return Moment(*links.set_delay(cable, self._names.fabric, None), "testbed")

    def close(self) -> None:
        """Stop the delaying process, if there is one. This ends the delay."""
        if self._wire is not None:
            self._ended = self._wire.close()
            self._wire = None


class Power(SimpleMechanism):
    """A fault that stops switches: they drop all frames and lose their tables, counters and queues."""

    def __init__(
        self,
        fabric: Fabric,
        target: SwitchTarget,
        revive: Callable[..., None],
        renew: Callable[[str], None],
    ) -> None:
        """Store ``revive``, which boots and programs switches, and ``renew``, which writes faults to them."""
        self._fabric = fabric
        self._target = target
        self._revive = revive
        self._renew = renew

    def apply(self, fault: Fault) -> Moment:
        """Stop all switches of the place in one call."""
        before, after = self._target.kill(*switches_at(self._fabric, fault.where))
        return Moment(before, after, "switch" if self._target.capabilities.stamps_kill else "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Boot the switches, wait until they are programmed, and write their other faults again."""
        before = time.monotonic_ns()
        names = switches_at(self._fabric, fault.where)
        self._revive(*names)
        for name in names:
            self._renew(name)
        return Moment(before, time.monotonic_ns(), "testbed")


LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    phase: Phase
    fault: Fault
    mechanism: Mechanism


class Cycle(SimpleMechanism):
    """A fault with phases: the phases happen once or, if the fault has a period, in every period.

    The first phase begins at once.
    """

    def __init__(self, mechanisms: Mapping[str, MakeMechanism], lock: threading.RLock) -> None:
        """Store the function that makes each fault kind's mechanism, and the fault registry's lock."""
        self._mechanisms = mechanisms
        self._lock = lock
        self._steps: tuple[_Step, ...] = ()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._transitions: list[Transition] = []
        self._last: _Step | None = None

    def transitions(self) -> Sequence[Transition]:
        """Return the times at which each phase so far began and ended."""
        return tuple(self._transitions)

    def prepare(self, fault: Fault) -> None:
        """Start the preparation of all phases."""
        for step in self._steps_of(fault):
            step.mechanism.prepare(step.fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until all phases are prepared."""
        for step in self._steps_of(fault):
            step.mechanism.wait_prepared(step.fault)

    def _steps_of(self, fault: Fault) -> tuple[_Step, ...]:
        phases = kind_named(fault.kind).phases
        assert phases is not None
        if not self._steps:
            self._steps = tuple(
                _Step(phase, phase_fault(fault, phase), self._mechanisms[phase.kind]())
                for phase in phases(fault)
            )
        return self._steps

    def renew(self, switch: str) -> None:
        """If a phase is active now, write its entries to this restarted switch again."""
        for step in self._steps:
            step.mechanism.renew(switch)

    def forget(self) -> None:
        """Record that no phase is active."""
        for step in self._steps:
            step.mechanism.forget()

    def apply(self, fault: Fault) -> Moment:
        """Begin the first phase, and start the thread that makes the other phases."""
        steps = self._steps_of(fault)
        start_ns = time.monotonic_ns()
        moment = self._begin(steps[0])
        period_ns = fault.period_ns if "period_ns" in kind_named(fault.kind).takes else None

        def run_caught() -> None:
            try:
                self._go_on(steps, start_ns, period_ns)
            except Exception:  # `undo` will report the cause
                LOGGER.warning("%s of %s came to an end", fault.kind, fault.where, exc_info=True)

        name = f"{fault.kind} of {fault.where}"
        self._thread = threading.Thread(target=run_caught, name=name, daemon=True)
        self._thread.start()
        return moment

    def _begin(self, step: _Step) -> Moment:
        with self._lock:
            moment = step.mechanism.apply(step.fault)
            self._transitions.append(Transition(moment))
            self._last = step
        return moment

    def _end(self, step: _Step) -> Moment:
        with self._lock:
            moment = step.mechanism.undo(step.fault)
            self._transitions[-1] = replace(self._transitions[-1], up=moment)
        return moment

    def _go_on(self, steps: Sequence[_Step], start_ns: int, period_ns: int | None) -> None:
        first = True
        while True:
            for step in steps:
                if not first:
                    if self._wait_until(start_ns + step.phase.start_ns):
                        return
                    self._begin(step)
                first = False
                if self._wait_until(start_ns + step.phase.start_ns + step.phase.length_ns):
                    return
                self._end(step)
            if period_ns is None:
                return
            start_ns += period_ns

    def _wait_until(self, moment_ns: int) -> bool:
        return self._stop.wait(max(0, moment_ns - time.monotonic_ns()) / 1e9)

    def close(self) -> None:
        """Stop the thread and wait until it has ended."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def undo(self, fault: Fault) -> Moment:
        """Stop the cycle and end an active phase. Return the time at which the last phase ended."""
        self.close()
        assert self._last is not None
        return self._transitions[-1].up or self._end(self._last)


def lab_faults(
    fabric: Fabric,
    names: Names,
    target: SwitchTarget,
    tables: FaultTables,
    revive: Callable[..., None],
) -> Faults:
    """Return the registry of a lab's faults. ``revive`` starts switches and waits until they are ready."""
    lock = threading.RLock()

    def power() -> Power:
        # `faults` is defined below. It exists when this function is called.
        return Power(fabric, target, revive, lambda switch: faults.renew(switch))

    mechanisms: dict[str, MakeMechanism] = {
        **dict.fromkeys(TABLE_KINDS, lambda: TableEntries(tables)),
        "carrier": lambda: Carrier(fabric, names, target.capabilities),
        "port-down": lambda: NicPort(fabric, names),
        "delay": lambda: Delay(fabric, names, target.capabilities),
        "switch-death": power,
        "plane-death": power,
    }
    cyclic = [kind.name for kind in KINDS.values() if kind.phases is not None]
    simple = dict(mechanisms)
    mechanisms |= dict.fromkeys(cyclic, lambda: Cycle(simple, lock))
    faults = Faults(fabric, mechanisms, lock)
    return faults
