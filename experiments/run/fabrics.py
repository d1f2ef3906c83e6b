"""The fabric that a transport runs on: our switches, or routers with FRRouting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from controller.fault_kinds import Fault, Moment
from experiments.spec.transports import Transport
from hosts.collectives.tcp_channel import MptcpMissingError, open_socket
from linux.errors import MachineError
from testbed import kernel_ip
from testbed.frr.fabric import FrrFabric
from testbed.frr.plan import Timers
from testbed.lab import Lab
from testbed.mptcp import announce_ports
from testbed.network import FabricNetwork
from topologies import Fabric

KERNEL_KINDS = ("tcp", "mptcp")


class FaultMaker(Protocol):
    """Makes and undoes faults: testbed.faults for switches, testbed.frr.faults for routers."""

    def prepare(self, fault: Fault) -> None:
        """Get ready what a fault will need."""

    def apply(self, fault: Fault) -> Moment:
        """Make a fault."""

    def undo(self, where: str) -> Moment:
        """Undo the fault of a place."""

    def forget(self, where: str) -> None:
        """Take a fault as undone: its switch lost it when it ended."""


class RunningFabric(Protocol):
    """What a repetition needs of a fabric that is up."""

    @property
    def network(self) -> FabricNetwork:
        """Return namespaces and cables."""

    @property
    def fabric(self) -> Fabric:
        """Return the model of it."""

    @property
    def faults(self) -> FaultMaker:
        """Return what breaks it."""

    @property
    def target_name(self) -> str:
        """Return what runs the switches; empty for routers."""


def bring_up(
    fabric: Fabric, target: str, transport: Transport, logs: Path
) -> AbstractContextManager[RunningFabric]:
    """Bring up what the transport's routing asks for; it goes down at the end of the ``with``.

    Raises what Lab.up and FrrFabric.up raise, MachineError also where the kernel lacks the transport.
    """
    if transport.kind == "mptcp":
        require_mptcp()
    if transport.routing != "frr":
        return _switched(fabric, target, transport, logs)
    timers = Timers() if transport.detection_ns is None else Timers.detecting_in(transport.detection_ns)
    routed = FrrFabric.up(fabric, timers)
    if transport.kind == "mptcp":
        announce_ports(fabric, routed.network.places)
    return routed


@contextmanager
def _switched(fabric: Fabric, target: str, transport: Transport, logs: Path) -> Iterator[Lab]:
    """Yield our switches, with plain IPv6 routes and kernel addresses where the transport needs them."""
    with Lab.up(fabric, target, logs) as lab:
        if transport.routing == "ecmp":
            lab.controller.install_ecmp()
        if transport.kind in KERNEL_KINDS:
            # Not for the others: the kernel would answer datagrams that are not for it.
            kernel_ip.address_hosts(fabric, lab.network.places)
        if transport.kind == "mptcp":
            announce_ports(fabric, lab.network.places)
        yield lab


def require_mptcp() -> None:
    """Raises MachineError where the kernel has no MPTCP."""
    try:
        open_socket(True).close()
    except MptcpMissingError as error:
        raise MachineError(str(error.strerror)) from None
