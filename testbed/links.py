"""Create the cables of a fabric, many at a time: veth pairs with MTU, MAC, rate and delay."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pyroute2 import IPRoute

from mrclab.controller.queues import Shape, bytes_of, queue_setting, shape_of
from mrclab.linux import namespaces, rtnetlink
from mrclab.linux.errors import MachineError
from mrclab.linux.rtnetlink import Request
from mrclab.linux.scheduling import ABOVE_AGENTS, before_others
from mrclab.p4src.contract import PRIORITY_CONTROL, PRIORITY_TRIMMED
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, Link, LinkProfile

# Interfaces get fixed indexes, so that no look-up is needed. The indexes are well above the indexes of the
# tunnel devices that the kernel makes in a new namespace.
FIRST_INDEX = 1001
GROUP = 0x6D7263  # group of mrclab's interfaces; one request can delete all of them
TXQUEUELEN = 1000
# Classes of HTB, the qdisc of switch ports. A frame's class depends on its standard_metadata.priority.
LINK_CLASS, DATA_CLASS = 1, 0x10
TRIMMED_CLASS, CONTROL_CLASS = DATA_CLASS + PRIORITY_TRIMMED, DATA_CLASS + PRIORITY_CONTROL
FIRST_TO_LAST = (CONTROL_CLASS, TRIMMED_CLASS, DATA_CLASS)
LEAF_HEADROOM = 16  # a leaf may borrow 16 times the link's rate, so that only the root limits it


def port_shape(profile: LinkProfile) -> Shape:
    """Return the shape of a switch port: like ``shape_of``, but with more room in the queue.

    The switch program limits the queue. The kernel's queue has room for four times this limit, because frames
    that the kernel sends late also wait there. The kernel must not drop frames: the switch program would not
    notice the loss.
    """
    shape = shape_of(profile)
    allowed = bytes_of(queue_setting(profile, last_hop=True).limit, profile.rate_bps)
    return replace(shape, limit_bytes=max(shape.limit_bytes, 4 * allowed))


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link as an interface of the kernel."""

    ifname: str
    namespace: str
    index: int
    mac: bytes


@dataclass(frozen=True, slots=True)
class Cable:
    """A link with its two ends, in the same order as in the link."""

    link: Link
    a: End
    b: End


def cables(fabric: Fabric, names: Names, *, routers: bool = False) -> tuple[Cable, ...]:
    """Return every link of a fabric with the namespace, interface index and MAC of both ends."""
    macs = {port.ref: port.mac for switch in fabric.switches for port in switch.ports}
    macs |= {port.ref: port.mac for host in fabric.hosts for port in host.ports}
    places = names.places(fabric, routers=routers)
    used: dict[str, int] = {}
    found = []
    for link in fabric.links:
        ends = []
        for ref in (link.a, link.b):
            namespace = places[ref.node]
            index = used[namespace] = used.get(namespace, FIRST_INDEX - 1) + 1
            ends.append(End(ref.ifname, namespace, index, macs[ref]))
        found.append(Cable(link, ends[0], ends[1]))
    return tuple(found)


def lay(fabric: Fabric, names: Names, *, routers: bool = False) -> None:
    """Make every link of a fabric in its namespaces, which must exist, and bring both ends up.

    With ``routers``, switch ports get a plain token bucket like host ports, because no switch program limits
    their queues. After the return, frames pass in both directions. Delays are made here if the kernel has
    netem; otherwise `mrclab.testbed.delays.long_wire` makes them. Raise MachineError if the kernel lacks
    something that a link needs, OSError if it refuses a request.
    """
    plan = cables(fabric, names, routers=routers)
    ends: dict[str, list[tuple[End, LinkProfile]]] = {}
    for cable in plan:
        for end in (cable.a, cable.b):
            ends.setdefault(end.namespace, []).append((end, _as_shaped(cable.link.profile)))

    def work() -> None:
        namespaces.enter(names.fabric)
        with ExitStack() as stack:
            fds = {namespace: namespaces.open_fd(namespace) for namespace in ends}
            for fd in fds.values():
                stack.callback(os.close, fd)
            _make(plan, names.fabric, fds)
        for namespace, here in ends.items():
            namespaces.enter(namespace)
            with rtnetlink.opened_ethtool() as ethtool:
                rtnetlink.switch_off(ethtool, (end.ifname for end, _ in here))
            with rtnetlink.opened() as route:
                (_shape_ports if namespace == names.fabric else _shape)(route, here)
                rtnetlink.send(route, [rtnetlink.up(end.index) for end, _ in here], "cannot bring links up")
        for namespace, here in ends.items():
            namespaces.enter(namespace)
            with rtnetlink.opened_ethtool() as ethtool:
                for end, _ in here:
                    rtnetlink.settle(ethtool, end.ifname)

    namespaces.in_thread(work)


def _as_shaped(profile: LinkProfile) -> LinkProfile:
    """Return the link's profile for the kernel's queues: without its delay if the kernel has no netem."""
    return replace(profile, delay_ns=0) if profile.delay_ns and not has_netem() else profile


def _make(plan: Iterable[Cable], here: str, fds: Mapping[str, int]) -> None:
    """Make the veth pairs. ``here`` is the namespace of the calling thread."""

    def interface(end: End, profile: LinkProfile) -> dict[str, Any]:
        elsewhere = {"net_ns_fd": fds[end.namespace]} if end.namespace != here else {}
        return rtnetlink.interface(
            end.index,
            ifname=end.ifname,
            address=end.mac.hex(":"),
            mtu=profile.mtu_bytes,
            txqlen=TXQUEUELEN,
            group=GROUP,
            num_tx_queues=1,
            num_rx_queues=1,
            **elsewhere,
        )

    requests = []
    for cable in plan:
        profile = cable.link.profile
        far = interface(cable.a, profile)
        requests.append(rtnetlink.veth(interface(cable.b, profile), far))
    try:
        with rtnetlink.opened() as route:
            rtnetlink.send(route, requests, "cannot make links")
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise MachineError("the kernel has no veth", "enable CONFIG_VETH (modprobe veth)") from None
        raise


def _shape(route: IPRoute, ends: Iterable[tuple[End, LinkProfile]]) -> None:
    buckets: list[Request] = []
    delays: list[Request] = []
    for end, profile in ends:
        shape = shape_of(profile)
        buckets.append(
            rtnetlink.tbf(
                end.index,
                rate_bps=shape.rate_bps,
                burst_bytes=shape.burst_bytes,
                limit_bytes=shape.limit_bytes,
            )
        )
        if profile.delay_ns:
            delays.append(_delay(end.index, profile, shape, LINK_CLASS))
    _send_qdiscs(route, buckets, "sch_tbf", "link rates", "CONFIG_NET_SCH_TBF")
    _send_qdiscs(route, delays, "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")


def _delay(index: int, profile: LinkProfile, shape: Shape, parent: int) -> Request:
    # netem holds the frames on the link and in the queue. The limit assumes small frames (256 bytes).
    held = shape.limit_bytes + profile.rate_bps * profile.delay_ns // (8 * 10**9)
    packets = held // 256 + 1
    return rtnetlink.netem(index, delay_ns=profile.delay_ns, limit_packets=packets, parent=parent)


def _shape_ports(route: IPRoute, ends: Iterable[tuple[End, LinkProfile]]) -> None:
    shape_ports(route, [(end.index, profile) for end, profile in ends])


def shape_ports(route: IPRoute, ports: Iterable[tuple[int, LinkProfile]]) -> None:
    """Give switch ports (interface index, link) their rate and classes with strict priority.

    The priorities, highest first, are control, trimmed, data. The root class limits the rate. The other
    classes borrow rate from the root by priority. A class with a guaranteed rate would ignore its priority,
    so these rates are almost 0. The kernel's queues have more room than the switch program's queues, so they
    drop no frame. Raise MachineError if the kernel lacks a qdisc, OSError if it refuses a request.
    """
    buckets: list[Request] = []
    delays: list[Request] = []
    for index, profile in ports:
        shape = port_shape(profile)
        ceil, burst = shape.rate_bps * LEAF_HEADROOM, shape.burst_bytes * LEAF_HEADROOM
        leaf = {
            "parent": LINK_CLASS,
            "rate_bps": 8,
            "ceil_bps": ceil,
            "burst_bytes": 1,
            "ceil_burst_bytes": burst,
        }
        root = {"parent": 0, "rate_bps": shape.rate_bps, "ceil_bps": shape.rate_bps}
        buckets += [
            rtnetlink.htb(index, default_class=DATA_CLASS),
            rtnetlink.htb_class(index, number=LINK_CLASS, burst_bytes=shape.burst_bytes, **root),
        ]
        for order, parent in enumerate(FIRST_TO_LAST):
            buckets.append(rtnetlink.htb_class(index, number=parent, order=order, **leaf))
            if profile.delay_ns:
                delays.append(_delay(index, profile, shape, parent))
            else:
                buckets.append(rtnetlink.bfifo(index, limit_bytes=shape.limit_bytes, parent=parent))
    _send_qdiscs(route, buckets, "sch_htb", "link rates", "CONFIG_NET_SCH_HTB")
    _send_qdiscs(route, delays, "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")


def _send_qdiscs(route: IPRoute, requests: Sequence[Request], module: str, what: str, option: str) -> None:
    try:
        rtnetlink.send(route, requests, f"cannot set {what}")
    except OSError as error:
        if error.errno == errno.ENOENT:  # the kernel does not know this qdisc
            raise MachineError(
                f"the kernel has no {module}, which {what} need",
                f"enable {option} (modprobe {module})",
            ) from None
        raise


def set_up(namespace: str, ifname: str, *, up: bool = True) -> tuple[int, int]:
    """Bring an interface up, or take it down. Raise OSError.

    Return CLOCK_MONOTONIC (ns) before and after the request to the kernel.
    """

    def work() -> tuple[int, int]:
        namespaces.enter(namespace)
        what = f"cannot {'bring up' if up else 'take down'} {ifname}"
        with rtnetlink.opened() as route, rtnetlink.refusals(what):
            index, state = socket.if_nametoindex(ifname), "up" if up else "down"
            with before_others(ABOVE_AGENTS):  # so that busy NICs do not delay the request
                before = time.monotonic_ns()
                route.link("set", index=index, state=state)
                return before, time.monotonic_ns()

    return namespaces.in_thread(work)


def settle(ends: Iterable[tuple[str, str]]) -> bool:
    """Make interfaces, given as (namespace, name), ready for frames. Return False if one has no carrier."""

    def work() -> bool:
        carrier = True
        for namespace, ifname in ends:
            namespaces.enter(namespace)
            with rtnetlink.opened_ethtool() as ethtool:
                carrier = rtnetlink.settle(ethtool, ifname) and carrier
        return carrier

    return namespaces.in_thread(work)


def set_delay(cable: Cable, switches: str, delay_ns: int | None) -> tuple[int, int]:
    """Delay a cable by ``delay_ns`` in each direction. If ``delay_ns`` is None, end the delay.

    ``switches`` is the namespace of the switches, whose ports have HTB classes. The kernel must have netem,
    and the cable must have no delay in its topology. Return CLOCK_MONOTONIC (ns) before the first request and
    after the last request. Raise OSError if the kernel refuses a request.
    """
    profile = cable.link.profile

    def work() -> tuple[int, int]:
        before = time.monotonic_ns()
        for end in (cable.a, cable.b):
            namespaces.enter(end.namespace)
            port = end.namespace == switches
            shape = port_shape(profile) if port else shape_of(profile)
            parents = FIRST_TO_LAST if port else (LINK_CLASS,)
            requests = []
            for parent in parents:
                if port or delay_ns is None:
                    requests.append(rtnetlink.no_leaf(end.index, parent=parent))
                if delay_ns is not None:
                    longer = replace(profile, delay_ns=delay_ns)
                    requests.append(_delay(end.index, longer, shape, parent))
                elif port:
                    requests.append(rtnetlink.bfifo(end.index, limit_bytes=shape.limit_bytes, parent=parent))
            with rtnetlink.opened() as route:
                _send_qdiscs(route, requests, "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")
        return before, time.monotonic_ns()

    return namespaces.in_thread(work)


@cache
def has_netem() -> bool:
    """Return True if the kernel has netem. Try netem on the loopback interface of a new namespace.

    Raise OSError if the kernel refuses the namespace.
    """

    def work() -> bool:
        namespaces.unshare()
        with rtnetlink.opened() as route:
            loopback = rtnetlink.tbf(namespaces.LO_INDEX, rate_bps=10**9, burst_bytes=9216, limit_bytes=9216)
            rtnetlink.send(route, [loopback], "cannot try link delays")
            delay = rtnetlink.netem(namespaces.LO_INDEX, delay_ns=1000, limit_packets=1)
            try:
                _send_qdiscs(route, [delay], "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")
            except MachineError:
                return False
            return True

    return namespaces.in_thread(work)


def cut(namespace: str) -> None:
    """Delete all of mrclab's interfaces in a namespace, and with them the other ends of their cables.

    One request deletes all interfaces, because the kernel waits for some time in each request. Raise OSError.
    """

    def work() -> None:
        namespaces.enter(namespace)
        with rtnetlink.opened() as route, rtnetlink.refusals("cannot delete links"):
            route.link("del", group=GROUP)

    try:
        namespaces.in_thread(work)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EINVAL):  # the group has no interface
            raise
