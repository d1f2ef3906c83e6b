"""The fabric of a transport, and the delay with which its routing reacts to faults.

The fabric consists of P4 switches, or of routers with FRRouting. Switches with ECMP do not react to a dead
link. If the transport has a ``detection_ns`` (`ecmp+controller`), the controller removes a dead link from the
routes ``detection_ns`` after the link died. In this time a routing protocol would notice that hellos are
missing.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

from mrclab.controller.fabric import ControllerThread
from mrclab.controller.pipeline import Pipeline
from mrclab.experiments.measure.evidence import RouteChange
from mrclab.experiments.run.late_detection import LateDetection
from mrclab.hosts.collectives.tcp_channel import MptcpMissingError, open_socket
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import MachineError
from mrclab.testbed import kernel_ip
from mrclab.testbed.frr.fabric import FrrFabric, RouteWatch
from mrclab.testbed.kernel_ip import announce_ports
from mrclab.testbed.lab import Lab
from mrclab.testbed.running import RunningFabric
from mrclab.topologies import Fabric
from mrclab.topologies.routed import Timers


def bring_up(
    fabric: Fabric, target: str, transport: Transport, logs: Path, pipeline: Pipeline | None = None
) -> AbstractContextManager[RunningFabric]:
    """Start the fabric with the transport's routing. When the ``with`` ends, the fabric is removed.

    ``pipeline`` replaces the shipped program of the switches.

    Raise the errors of Lab.up and FrrFabric.up, and MachineError if the kernel lacks the transport.
    """
    if transport.kind == "mptcp":
        require_mptcp()
    if transport.routing != "frr":
        return _switched(fabric, target, transport, logs, pipeline)
    timers = Timers() if transport.detection_ns is None else Timers.detecting_in(transport.detection_ns)
    routed = FrrFabric.up(fabric, timers)
    if transport.kind == "mptcp":
        announce_ports(fabric, routed.network.places)
    return routed


@contextmanager
def _switched(
    fabric: Fabric, target: str, transport: Transport, logs: Path, pipeline: Pipeline | None
) -> Iterator[Lab]:
    """Start the P4 switches and yield them, with the IPv6 routes and addresses that the transport needs."""
    with Lab.up(fabric, target, logs, pipeline=pipeline) as lab:
        if transport.routing == "ecmp":
            lab.controller.install_ecmp()
        elif transport.routing == "structured":
            lab.controller.install_structured()
        if not transport.core.has_nic:
            # Hosts with mrclab's NICs get no addresses: the kernel would answer packets that are for these
            # NICs.
            kernel_ip.address_hosts(fabric, lab.network.places)
        if transport.kind == "mptcp":
            announce_ports(fabric, lab.network.places)
        yield lab


def require_mptcp() -> None:
    """Raise MachineError if the kernel has no MPTCP."""
    try:
        open_socket(True).close()
    except MptcpMissingError as error:
        raise MachineError(str(error.strerror)) from None


class Withdrawal(NamedTuple):
    """A change of routes by the controller: when it was due, and when every switch had made it."""

    link: str
    up: bool
    due_ns: int
    done_ns: int


class Reaction(LateDetection):
    """How a run's routing reacts to faults: ``act`` makes the changes of routes that are due at ``next_ns``.

    If ``detection_ns`` is None, the controller changes no route. Routers react without the controller.
    """

    def __init__(self, running: RunningFabric, transport: Transport, seed: int) -> None:
        self._controller: ControllerThread | None = None
        if isinstance(running, Lab) and transport.detection_ns is not None:
            self._controller = running.controller
        super().__init__(running.fabric, transport.detection_ns if self._controller else None, seed)
        self._watch: RouteWatch | None = None
        if isinstance(running, FrrFabric):
            self._watch = RouteWatch(running.network.places[router.name] for router in running.routers)
        self.made: list[Withdrawal] = []

    def act(self, now_ns: int) -> None:
        """Withdraw and restore the routes that are due, and note route changes of routers."""
        if self._watch is not None:
            self._watch.note()
        for change in self.due(now_ns):
            self._route(change.link, up=change.up)
            self.made.append(Withdrawal(change.link, change.up, change.at_ns, time.monotonic_ns()))

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when a router's routes have changed."""
        return self._watch.descriptors() if self._watch is not None else []

    def changes(self) -> list[RouteChange]:
        """Return the times of all changes of routes, repairs included."""
        made = [RouteChange(change.due_ns, change.done_ns) for change in self.made]
        seen = self._watch.changes_ns if self._watch is not None else []
        return [*made, *(RouteChange(t_ns, t_ns) for t_ns in seen)]

    def undo_all(self) -> None:
        """Restore the routes over all links, and stop watching the routers."""
        if self._watch is not None:
            self._watch.close()
        last = {made.link: made.up for made in self.made}
        for link in (link for link, up in last.items() if not up):
            self._route(link, up=True)

    def _route(self, link: str, *, up: bool) -> None:
        if self._controller is not None:
            change = self._controller.restore if up else self._controller.withdraw
            change(*link.split(":"))
