"""MPTCP between hosts: each announces the addresses of all its ports, so that a connection has a subflow in
every plane.

The kernel keeps this state per network namespace, and drops it with the namespace.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyroute2 import MPTCP

from mrclab.linux import namespaces, rtnetlink
from mrclab.topologies import Fabric

_SIGNAL = 1  # MPTCP_PM_ADDR_FLAG_SIGNAL: announce the address to peers, which then open a subflow to it


def announce_ports(fabric: Fabric, places: Mapping[str, str]) -> None:
    """Make every host announce its ports' addresses, which it must have already (kernel_ip).

    ``places`` has the namespace of each host. Raise OSError if the kernel refuses.
    """

    def work() -> None:
        for host in fabric.hosts:
            namespaces.enter(places[host.name])
            with rtnetlink.refusals(f"cannot set up MPTCP on {host.name}"), MPTCP() as mptcp:
                mptcp.limits("set", subflows=fabric.planes, rcv_add_addrs=fabric.planes)
                for port in host.ports:
                    mptcp.endpoint("add", addr6=str(port.address), flags=_SIGNAL)

    namespaces.in_thread(work)
