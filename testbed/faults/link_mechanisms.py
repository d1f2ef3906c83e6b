"""Faults of links and NIC ports: entries of a fault table, an interface that goes down, a longer link."""

from __future__ import annotations

import time

from mrclab.controller.fault_tables import FaultTables
from mrclab.faults.mechanism import SimpleMechanism
from mrclab.faults.model import Fault, Moment
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import PORT_DOWN_HALTS, Capabilities
from mrclab.testbed import links
from mrclab.testbed.delays.lengthen import wire_ends
from mrclab.testbed.delays.long_wire import LongWires
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, Link


class TableEntries(SimpleMechanism):
    """Entries of a switch's fault table: one P4Runtime write each way."""

    def __init__(self, tables: FaultTables) -> None:
        self._tables = tables
        self._written: Fault | None = None

    def prepare(self, fault: Fault) -> None:
        """Begin to connect to the switch."""
        self._tables.connect(fault)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait until the switch answers."""
        self._tables.wait_connected(fault)

    def apply(self, fault: Fault) -> Moment:
        """Write the entries."""
        moment = self._tables.insert(fault)
        self._written = fault
        return moment

    def undo(self, fault: Fault) -> Moment:
        """Delete the entries."""
        moment = self._tables.delete(fault)
        self._written = None
        return moment

    def renew(self, switch: str) -> None:
        """Write the entries again if this switch held them."""
        if self._written is not None and self._tables.switch_of(self._written) == switch:
            self._tables.insert(self._written)

    def forget(self) -> None:
        """Take the entries as gone."""
        self._written = None


class _Interface(SimpleMechanism):
    """Base of the faults that take an interface down; the subclass says which one."""

    def __init__(self, fabric: Fabric, names: Names) -> None:
        self._fabric = fabric
        self._names = names

    def _cable(self, link: Link) -> links.Cable:
        return next(c for c in links.cables(self._fabric, self._names) if c.link == link)

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        """Return the end to take down and the other one."""
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
    """Carrier loss: one end of a cable is down, so that the other has no carrier.

    The end that goes down is the one farther from the hosts: a NIC sees its carrier go, as it would with a
    pulled cable. If a switch's own interfaces must not go down, it is the NIC's end of a host link, and
    links between switches are refused.
    """

    def __init__(self, fabric: Fabric, names: Names, capabilities: Capabilities) -> None:
        super().__init__(fabric, names)
        self._capabilities = capabilities

    def prepare(self, fault: Fault) -> None:
        """Refuse a link that cannot lose its carrier."""
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
    """A NIC port that its own host takes down; its T0 sees the carrier go."""

    def _ends(self, fault: Fault) -> tuple[links.End, links.End]:
        link = next(link for link in self._fabric.links if link.a.ifname == fault.where)
        cable = self._cable(link)
        return cable.a, cable.b


class Delay(_Interface):
    """A longer link, each way: by netem queues at its ends, else by a process that holds frames back."""

    def __init__(self, fabric: Fabric, names: Names, capabilities: Capabilities) -> None:
        super().__init__(fabric, names)
        self._capabilities = capabilities
        self._wire: LongWires | None = None
        self._ended: tuple[int, int] | None = None

    def _cable_of(self, fault: Fault) -> links.Cable:
        return self._cable(self._fabric.link(*fault.where.split(":")))

    def prepare(self, fault: Fault) -> None:
        """Start the process, if the fault needs one."""
        cable = self._cable_of(fault)
        if cable.link.profile.delay_ns:
            raise InputError(f"link {cable.link.name} has a delay already: change it in the topology")
        if not links.has_netem():
            ends = wire_ends(cable, fault.delay_ns)
            self._wire = LongWires(ends, egress=self._capabilities.takes_frames_first)

    def wait_prepared(self, fault: Fault) -> None:
        """Wait for the process."""
        if self._wire is not None:
            self._wire.wait_ready()

    def apply(self, fault: Fault) -> Moment:
        """Make the link longer."""
        if self._wire is not None:
            return Moment(*self._wire.begin(), "testbed")
        return Moment(*links.set_delay(self._cable_of(fault), self._names.fabric, fault.delay_ns), "testbed")

    def undo(self, fault: Fault) -> Moment:
        """Make the link as long as it was."""
        self.close()
        if self._ended is not None:
            return Moment(*self._ended, "testbed")
        cable = self._cable_of(fault)
        return Moment(*links.set_delay(cable, self._names.fabric, None), "testbed")

    def close(self) -> None:
        """Stop the process, if there is one, and with it the delay."""
        if self._wire is not None:
            self._ended = self._wire.close()
            self._wire = None
