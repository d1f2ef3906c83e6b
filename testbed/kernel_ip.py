"""Set up the kernel's IPv6 and MPTCP on hosts' ports, for TCP and for programs of users.

By default the kernel's IPv6 is off, because a transport in user space needs the ports for itself. This module
gives each port its address and one route, without neighbour discovery: the route to all addresses of the
port's plane leads to the T0. For MPTCP, each host announces the addresses of all its ports, so that a
connection has a subflow in every plane. The settings are deleted with the network namespace.
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
GATEWAY = IPv6Address("fe80::1")  # the address of a host's T0, which has a fixed MAC
_CONF = Path("/proc/sys/net/ipv6/conf")
# The kernel must send no frames before a program sends: no duplicate address detection, no solicitations, no
# automatic address.
_SILENT = {"accept_dad": 0, "dad_transmits": 0, "router_solicitations": 0, "accept_ra": 0, "addr_gen_mode": 1}


def plane_network(port: NicPort) -> IPv6Network:
    """Return the IPv6 network that contains the ports of all hosts in one plane."""
    return IPv6Network((int(port.address), PLANE_PREFIX_LEN), strict=False)


def address_hosts(fabric: Fabric, places: Mapping[str, str]) -> None:
    """Give every port of every host its address, and a route to its plane through the T0.

    ``places`` has the namespace of each host. Raise OSError if the kernel refuses a request.
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
    """Undo `address_hosts`. Turning IPv6 off also deletes a port's addresses, routes and neighbours."""

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
    """Add a neighbour with a permanent MAC, so that the kernel never asks for the neighbour's MAC."""
    route.neigh(
        "add", family=socket.AF_INET6, ifindex=index, dst=str(address), lladdr=mac.hex(":"), state="permanent"
    )


def speak(ifnames: Iterable[str], *, link_local: bool = False) -> None:
    """Turn IPv6 on for these interfaces only, in the namespace of the calling thread.

    If ``link_local`` is true, the interfaces get a link-local address from the MAC: BGP needs this address.
    """
    for ifname in ifnames:
        for key, value in (_SILENT | ({"addr_gen_mode": 0} if link_local else {})).items():
            (_CONF / ifname / key).write_text(str(value))
        (_CONF / ifname / "disable_ipv6").write_text("0")


_SIGNAL = 1  # MPTCP_PM_ADDR_FLAG_SIGNAL: announce the address, so that peers open a subflow to it


def announce_ports(fabric: Fabric, places: Mapping[str, str]) -> None:
    """Make every host announce its ports' addresses for MPTCP. Call `address_hosts` first.

    ``places`` has the namespace of each host. Raise OSError if the kernel refuses a request.
    """

    def work() -> None:
        for host in fabric.hosts:
            namespaces.enter(places[host.name])
            with rtnetlink.refusals(f"cannot set up MPTCP on {host.name}"), MPTCP() as mptcp:
                mptcp.limits("set", subflows=fabric.planes, rcv_add_addrs=fabric.planes)
                for port in host.ports:
                    mptcp.endpoint("add", addr6=str(port.address), flags=_SIGNAL)

    namespaces.in_thread(work)
