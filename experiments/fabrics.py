"""The fabric that a transport of a comparison runs on: our switches, or routers with FRRouting."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from controller.faults import Moment
from experiments.transports import Transport
from testbed.faults import Fault
from testbed.frr.fabric import FrrFabric
from testbed.frr.plan import Timers
from testbed.lab import Lab
from testbed.mptcp import announce_ports
from testbed.network import FabricNetwork
from topologies import Fabric


class FaultMaker(Protocol):
    """Makes and undoes faults: testbed.faults for switches, testbed.frr.faults for routers."""

    def prepare(self, fault: Fault) -> None:
        """Gets ready what a fault will need."""

    def apply(self, fault: Fault) -> Moment:
        """Makes a fault."""

    def undo(self, where: str) -> Moment:
        """Undoes the fault of a place."""


class RunningFabric(Protocol):
    """What a session needs of a fabric that is up."""

    @property
    def network(self) -> FabricNetwork:
        """Namespaces and cables."""

    @property
    def fabric(self) -> Fabric:
        """The model of it."""

    @property
    def faults(self) -> FaultMaker:
        """What breaks it."""

    @property
    def target_name(self) -> str:
        """What runs the switches; empty for routers."""


def bring_up(
    fabric: Fabric, target: str, transport: Transport, logs: Path
) -> AbstractContextManager[RunningFabric]:
    """Brings up what the transport's routing asks for; it goes down at the end of the ``with``.

    Raises what Lab.up and FrrFabric.up raise.
    """
    if transport.routing != "frr":
        return Lab.up(fabric, target, logs)
    timers = Timers() if transport.detection_ns is None else Timers.detecting_in(transport.detection_ns)
    routed = FrrFabric.up(fabric, timers)
    if transport.kind == "mptcp":
        announce_ports(fabric, routed.network.places)
    return routed
