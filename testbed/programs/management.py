"""The management network: an Ethernet between all hosts, over which programs bootstrap by TCP.

It is no part of the fabric: a bridge in its own namespace, made when the first program needs it and
removed with the testbed. `mrclab.hosts.service.addresses` has the addresses.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from mrclab.hosts.service import addresses
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.namespaces import Markers
from mrclab.testbed import state
from mrclab.testbed.kernel_ip import speak
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric

INTERFACE = "mgmt0"
BRIDGE = "bridge0"
MTU_BYTES = 1500


def namespace(names: Names) -> str:
    """Return the namespace of the bridge."""
    return f"{names.prefix}-mgmt"


def provide(names: Names, fabric: Fabric) -> None:
    """Make the management network of the testbed that is up, unless it is there.

    Raise MachineError if the kernel has no bridges, OSError if it refuses something else.
    """
    if len(fabric.hosts) > addresses.MOST_HOSTS:
        raise InputError(f"the management network has addresses for {addresses.MOST_HOSTS} hosts")
    with state.locked(names):
        if (state.work_dir(names) / "management").exists():
            return
        markers = Markers(state.markers_dir(names))
        namespaces.delete(namespace(names), markers)  # of one that was interrupted
        namespaces.create(namespace(names), markers)
        namespaces.in_thread(lambda: _lay(names, fabric))
        state.work_dir(names).mkdir(parents=True, exist_ok=True)
        (state.work_dir(names) / "management").touch()


def _lay(names: Names, fabric: Fabric) -> None:
    namespaces.enter(namespace(names))
    with ExitStack() as stack:
        route = stack.enter_context(rtnetlink.opened())
        try:
            with rtnetlink.refusals("cannot make a bridge"):
                route.link("add", ifname=BRIDGE, kind="bridge", br_stp_state=0, br_mcast_snooping=0)
        except OSError as error:
            raise MachineError(str(error), "load the kernel's module 'bridge' (modprobe bridge)") from None
        bridge = socket.if_nametoindex(BRIDGE)
        with rtnetlink.refusals("cannot make the management network"):
            route.link("set", index=bridge, state="up")
            for host in fabric.hosts:
                fd = namespaces.open_fd(names.host(host.name))
                try:
                    peer = {"ifname": INTERFACE, "net_ns_fd": fd, "mtu": MTU_BYTES}
                    route.link("add", ifname=host.name, kind="veth", mtu=MTU_BYTES, peer=peer)
                finally:
                    os.close(fd)
                near = socket.if_nametoindex(host.name)
                route.link("set", index=near, master=bridge, state="up")
    for host in fabric.hosts:
        namespaces.enter(names.host(host.name))
        speak([INTERFACE])
        with rtnetlink.opened() as route, rtnetlink.refusals(f"cannot set the addresses of {host.name}"):
            index = socket.if_nametoindex(INTERFACE)
            route.link("set", index=index, state="up")
            v4, v6 = addresses.ipv4(fabric, host.name), addresses.ipv6(fabric, host.name)
            route.addr("add", index=index, address=str(v4), prefixlen=addresses.IPV4_BITS)
            route.addr("add", index=index, address=str(v6), prefixlen=addresses.IPV6_BITS)


def hosts_file(fabric: Fabric, host: str) -> str:
    """Return /etc/hosts for programs on a host: this machine's, and a name for every host.

    ``h0`` is its IPv4 address, ``h0-ipv6`` its IPv6 address.
    """
    try:
        own = Path("/etc/hosts").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        own = "127.0.0.1 localhost\n"
    lines = [own.rstrip("\n"), f"# The management network of mrclab, as host {host} sees it"]
    for each in fabric.hosts:
        lines.append(f"{addresses.ipv4(fabric, each.name)} {each.name}")
        lines.append(f"{addresses.ipv6(fabric, each.name)} {each.name}-ipv6")
    return "\n".join(lines) + "\n"
