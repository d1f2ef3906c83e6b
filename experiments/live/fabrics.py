"""The fabric that a transport runs on: our switches, or routers with FRRouting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from mrclab.controller.pipeline import Pipeline
from mrclab.hosts.collectives.tcp_channel import MptcpMissingError, open_socket
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import MachineError
from mrclab.testbed import kernel_ip
from mrclab.testbed.frr.fabric import FrrFabric
from mrclab.testbed.lab import Lab
from mrclab.testbed.mptcp import announce_ports
from mrclab.testbed.running import RunningFabric
from mrclab.topologies import Fabric
from mrclab.topologies.routed import Timers


def bring_up(
    fabric: Fabric, target: str, transport: Transport, logs: Path, pipeline: Pipeline | None = None
) -> AbstractContextManager[RunningFabric]:
    """Bring up the fabric for the transport's routing; it goes down at the end of the ``with``.

    ``pipeline`` is the switches' program, if it is not the shipped one.

    Raise the errors of Lab.up and FrrFabric.up, MachineError also if the kernel lacks the transport.
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
    """Yield our switches, with plain IPv6 routes and kernel addresses if the transport needs them."""
    with Lab.up(fabric, target, logs, pipeline=pipeline) as lab:
        if transport.routing == "ecmp":
            lab.controller.install_ecmp()
        elif transport.routing == "structured":
            lab.controller.install_structured()
        if not transport.core.has_nic:
            # Not for the others: the kernel would answer datagrams that are not for it.
            kernel_ip.address_hosts(fabric, lab.network.places)
        if transport.kind == "mptcp":
            announce_ports(fabric, lab.network.places)
        yield lab


def require_mptcp() -> None:
    """Check that the kernel has MPTCP. Raise MachineError if it has not."""
    try:
        open_socket(True).close()
    except MptcpMissingError as error:
        raise MachineError(str(error.strerror)) from None
