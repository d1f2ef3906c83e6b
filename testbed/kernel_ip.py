"""The kernel's own IPv6 and MPTCP on hosts' ports, for TCP and for programs that a user runs there.

The testbed keeps the kernel's IPv6 off, since a transport in user space wants the ports to itself. This gives
each port its address and one way out of it, without neighbour discovery: every address of the port's plane
lies behind its T0. For MPTCP each host announces the addresses of all its ports, so that a connection has a
subflow in every plane. The kernel keeps that state per network namespace, and drops it with the namespace.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
from ipaddress import IPv6Address, IPv6Network
from pathlib import Path

from pyroute2 import MPTCP, IPRoute

from mrclab.linux import namespaces, rtnetlink
from mrclab.topologies import Fabric, NicPort

PLANE_PREFIX_LEN = 64
GATEWAY = IPv6Address("fe80::1")  # hosts' name for their T0; its MAC never changes
_CONF = Path("/proc/sys/net/ipv6/conf")
# Only frames of ours: no duplicate address detection, no solicitations, no address of the kernel's own.
_SILENT = {"accept_dad": 0, "dad_transmits": 0, "router_solicitations": 0, "accept_ra": 0, "addr_gen_mode": 1}


def plane_network(port: NicPort) -> IPv6Network:
    """Return the network of all hosts' ports to one plane."""
    return IPv6Network((int(port.address), PLANE_PREFIX_LEN), strict=False)


def address_hosts(fabric: Fabric, places: Mapping[str, str]) -> None:
    """Give every port of every host its address, and a route to its plane via the T0.

    ``places`` has the namespace of each host. Raise OSError if the kernel refuses.
    """

    def work() -> None:
        for host in fabric.hosts:
            namespaces.enter(places[host.name])
            speak([port.ifname for port in host.ports])
            with rtnetlink.opened() as route, rtnetlink.refusals(f"cannot set addresses of {host.name}"):
                for port in host.ports:
                    _address(route, port)

    namespaces.in_thread(work)


def silence_hosts(fabric: Fabric, places: Mapping[str, str]) -> None:
    """Undo `address_hosts`: with IPv6 off, the kernel drops addresses, routes and neighbours of a port."""

    def work() -> None:
        for host in fabric.hosts:
            namespaces.enter(places[host.name])
            for port in host.ports:
                (_CONF / port.ifname / "disable_ipv6").write_text("1")

    namespaces.in_thread(work)


def _address(route: IPRoute, port: NicPort) -> None:
    index = socket.if_nametoindex(port.ifname)
    route.addr("add", index=index, address=str(port.address), prefixlen=128)
    add_neighbour(route, index, GATEWAY, port.t0_mac)
    route.route("add", dst=str(plane_network(port)), gateway=str(GATEWAY), oif=index)


def add_neighbour(route: IPRoute, index: int, address: IPv6Address, mac: bytes) -> None:
    """Add a neighbour with a permanent MAC, so that the kernel never asks for it."""
    route.neigh(
        "add", family=socket.AF_INET6, ifindex=index, dst=str(address), lladdr=mac.hex(":"), state="permanent"
    )


def speak(ifnames: Iterable[str], *, link_local: bool = False) -> None:
    """Turn IPv6 on for these interfaces of the namespace that the calling thread is in, and nothing else.

    With ``link_local`` they get such an address, made from their MAC; routers speak BGP over it.
    """
    for ifname in ifnames:
        for key, value in (_SILENT | ({"addr_gen_mode": 0} if link_local else {})).items():
            (_CONF / ifname / key).write_text(str(value))
        (_CONF / ifname / "disable_ipv6").write_text("0")


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
