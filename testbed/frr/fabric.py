"""A running routed fabric: namespaces, cables, and kernels whose routing tables FRRouting fills.

``RouteWatch`` records when routes change, from notifications of the routers' kernels.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from ipaddress import IPv6Address
from pathlib import Path
from types import TracebackType
from typing import Any

from pyroute2.netlink.rtnl import RTMGRP_IPV6_ROUTE

from mrclab.faults.registry import Faults
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import SwitchError
from mrclab.linux.life import signals
from mrclab.p4src.targets import NO_TARGET, Capabilities
from mrclab.testbed import kernel_ip, state
from mrclab.testbed.frr.daemons import DaemonError, Daemons, find_daemons
from mrclab.testbed.frr.faults import RouterFaults
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.running import Say
from mrclab.topologies import Fabric
from mrclab.topologies.routed import Router, Timers, expected_routes, plan

CONVERGENCE_S = 60.0
_LOOK_AGAIN_S = 1.0  # the longest time, s, between two reads of the routes
_SYSCTL = Path("/proc/sys/net")


class NotConvergedError(SwitchError):
    """The routers were not ready in time. The text names the missing routes, or the router without BFD."""


class FrrFabric:
    """A running fabric with the cables and hosts of a `Lab`, but with routers in place of P4 switches.

    `FrrFabric.up` creates it. Leaving the ``with`` takes everything down. Every T0 has kernel routes to its
    hosts and announces these routes by BGP.
    """

    def __init__(
        self,
        network: FabricNetwork,
        routers: tuple[Router, ...],
        daemons: Daemons,
        faults: Faults,
        timers: Timers,
        held: ExitStack,
    ) -> None:
        """Store the running parts. Closing ``held`` takes these parts down."""
        self.network = network
        self.fabric: Fabric = network.fabric
        self.routers = routers
        self.faults = faults
        self._held = held
        self.timers = timers
        self._daemons = daemons

    @classmethod
    def up(
        cls,
        fabric: Fabric,
        timers: Timers,
        *,
        names: Names | None = None,
        say: Say = lambda _: None,
        timeout_s: float = CONVERGENCE_S,
    ) -> FrrFabric:
        """Start everything, and wait until every T0 has all its ECMP routes to every host.

        Raise MachineError if FRRouting is not installed, NotConvergedError after ``timeout_s``, and the
        errors of FabricNetwork.up. After an error, everything is taken down again.
        """
        find_daemons()
        started = time.monotonic()
        with ExitStack() as held:
            network = held.enter_context(FabricNetwork.up(fabric, names=names, target="frr", routers=True))
            if network.found:
                say(f"what a testbed had left: {network.found}")
            routers = plan(fabric)
            kernel_ip.address_hosts(fabric, network.places)
            for router in routers:
                _make_router(network.places[router.name], router)
            router_faults = held.enter_context(closing(RouterFaults(fabric, network.places)))
            daemons = Daemons(network, timers, state.work_dir(network.names) / "frr")
            held.callback(daemons.stop)
            daemons.start(routers)
            say(f"{len(routers)} routers started ({time.monotonic() - started:.1f} s)")
            faults = held.enter_context(closing(router_faults.registry()))
            found = cls(network, routers, daemons, faults, timers, held)
            found.converged(timeout_s)
            say(f"all routes in place ({time.monotonic() - started:.1f} s)")
            found._held = held.pop_all()
            return found

    @property
    def target_name(self) -> str:
        """The switches' target, which is empty because there are no switches."""
        return ""

    @property
    def capabilities(self) -> Capabilities:
        """The properties of the kernel's routers."""
        return NO_TARGET

    def ended(self) -> str | None:
        """Return one line about a process that ended, but not because of a fault. Otherwise return None."""
        try:
            self._daemons.check()
        except DaemonError as error:
            return str(error)
        return self.network.ended()

    def __enter__(self) -> FrrFabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def down(self) -> None:
        """Take everything down. A second call has no effect. Signals wait until this call ends."""
        with signals.deferred():
            self._held.close()

    def converged(self, timeout_s: float = CONVERGENCE_S) -> None:
        """Wait until every T0 has all paths to every host of other racks, and BFD runs with all neighbours.

        Raise NotConvergedError after ``timeout_s``. The error names the missing routes, or a router with a
        neighbour that BFD does not watch. Raise DaemonError if a daemon has ended.
        """
        deadline = time.monotonic() + timeout_s
        for switch, wanted in expected_routes(self.fabric).items():
            self._routes(switch, wanted, deadline)
        for router in self.routers if self.timers.bfd_interval_ms else ():
            while not self._daemons.watched(router):
                self._daemons.check()
                if time.monotonic() > deadline:
                    raise NotConvergedError(f"BFD does not watch every neighbour of {router.name}")

    def _routes(self, switch: str, wanted: dict[IPv6Address, int], deadline: float) -> None:
        def work() -> None:
            namespaces.enter(self.network.places[switch])
            with _route_changes() as changed, rtnetlink.opened() as route:
                while missing := _missing(ways(route), wanted):
                    left = deadline - time.monotonic()
                    self._daemons.check()
                    if left <= 0:
                        raise NotConvergedError(f"{switch} has not all its routes: {missing}")
                    changed(min(left, _LOOK_AGAIN_S))

        namespaces.in_thread(work)


def ways(route: Any) -> dict[IPv6Address, int]:
    """Return the kernel's number of next hops for each host route in the namespace of this thread."""
    found: dict[IPv6Address, int] = {}
    for entry in route.get_routes(family=socket.AF_INET6):
        if entry["dst_len"] != 128 or (destination := entry.get_attr("RTA_DST")) is None:
            continue
        if entry.get_attr("RTA_GATEWAY") is None and entry.get_attr("RTA_MULTIPATH") is None:
            continue
        hops = len(entry.get_attr("RTA_MULTIPATH") or [None])
        address = IPv6Address(destination)
        found[address] = found.get(address, 0) + hops
    return found


def _missing(found: dict[IPv6Address, int], wanted: dict[IPv6Address, int]) -> str:
    for address, count in wanted.items():
        if found.get(address, 0) < count:
            return f"{address} by {found.get(address, 0)} of {count} ways"
    return ""


@contextmanager
def _route_changes() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits until a route of this namespace changes, or for at most ``timeout_s``."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as watcher:
        watcher.bind((0, RTMGRP_IPV6_ROUTE))
        watcher.setblocking(False)

        def changed(timeout_s: float) -> bool:
            ready = bool(select.select([watcher], [], [], timeout_s)[0])
            try:
                while watcher.recv(65536):
                    pass
            except OSError:  # no message, or an overflow: the caller reads all routes
                pass
            return ready

        yield changed


def _make_router(namespace: str, router: Router) -> None:
    """Let the kernel forward packets in a router's namespace, with ECMP and routes to the router's hosts."""

    def work() -> None:
        namespaces.enter(namespace)
        (_SYSCTL / "ipv6/conf/all/forwarding").write_text("1")
        (_SYSCTL / "ipv6/fib_multipath_hash_policy").write_text("1")  # also hash UDP and TCP ports
        kernel_ip.speak(["lo", *(host.ifname for host in router.hosts)])
        kernel_ip.speak([neighbour.ifname for neighbour in router.neighbours], link_local=True)
        with rtnetlink.opened() as route, rtnetlink.refusals(f"cannot set routes of {router.name}"):
            for host in router.hosts:
                index = socket.if_nametoindex(host.ifname)
                kernel_ip.add_neighbour(route, index, host.address, host.mac)
                route.route("add", dst=f"{host.address}/128", oif=index)

    namespaces.in_thread(work)


class RouteWatch:
    """A socket in every router's namespace, which becomes readable when a route there has changed.

    Notifications have no time stamp, so call ``note`` as soon as a socket is readable. Call ``close`` at the
    end.
    """

    def __init__(self, places: Iterable[str]) -> None:
        """Open the sockets. ``places`` are the routers' namespaces."""
        self._sockets: list[socket.socket] = []
        self.changes_ns: list[int] = []
        """The times (CLOCK_MONOTONIC, ns) at which routes changed."""
        try:
            for place in places:
                self._sockets.append(namespaces.in_thread(lambda place=place: _listen(place)))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def descriptors(self) -> list[int]:
        """Return the descriptor of each router's socket."""
        return [s.fileno() for s in self._sockets]

    def note(self) -> None:
        """Read all notifications. For each router with notifications, record the time of a route change."""
        for watcher in self._sockets:
            came = False
            try:
                while watcher.recv(65536):
                    came = True
            except BlockingIOError:
                pass
            except OSError:  # the socket overflowed, so something has changed
                came = True
            if came:
                self.changes_ns.append(time.monotonic_ns())

    def close(self) -> None:
        """Close the sockets. A second call has no effect."""
        while self._sockets:
            self._sockets.pop().close()


def _listen(place: str) -> socket.socket:
    namespaces.enter(place)
    watcher = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    watcher.bind((0, RTMGRP_IPV6_ROUTE))
    watcher.setblocking(False)
    return watcher
