"""The cables of a fabric: veth pairs with their MTU, MAC, rate and delay, laid in bulk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from testbed import namespaces
from testbed.errors import MachineError
from testbed.ethtool import Ethtool
from testbed.names import Names
from testbed.netlink import (
    Message,
    Netlink,
    NetlinkError,
    VethEnd,
    delete_group,
    htb,
    htb_class,
    netem,
    new_veth,
    set_up,
    tbf,
)
from topologies import Fabric, Link, LinkProfile

# Interfaces get indexes of our choosing, so that nothing has to be looked up. They start well above those
# that the kernel itself gives to the tunnel devices of a new namespace.
FIRST_INDEX = 1001
GROUP = 0x6D7263  # marks our interfaces, and lets the kernel delete them together
ETHERNET_HEADER = 14
TXQUEUELEN = 1000
BURST_NS = 100_000
QUEUE_NS = 2_000_000
MIN_QUEUE_FRAMES = 32
# Classes of a switch's port, as switches/ebpf puts frames into them by standard_metadata.priority 0 and 1.
LINK_CLASS, DATA_CLASS, HIGH_CLASS = 1, 0x10, 0x11
OWN_SHARE = 1000  # a leaf owns one in so many parts of the link; all else it borrows, high before data


@dataclass(frozen=True, slots=True)
class Shape:
    """A token bucket: bits per second, the bytes it lets through at once, and the bytes that may wait."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int


def shape_of(profile: LinkProfile) -> Shape:
    """How a link's rate is kept at each of its ends.

    The burst is what the link carries in 100 us, and at least two frames. It has to cover the time by which
    the kernel's timer can wake late, or the link would fall short of its rate; and the smaller it is, the
    closer the spacing of frames is to that of a wire. A link that was idle has a full bucket, so a lone
    frame is not delayed. The queue holds 2 ms at the link's rate and at least 32 frames; what comes then is
    dropped.
    """
    frame = profile.mtu_bytes + ETHERNET_HEADER
    per_second = profile.rate_bps // 8
    return Shape(
        profile.rate_bps,
        max(2 * frame, per_second * BURST_NS // 10**9),
        max(MIN_QUEUE_FRAMES * frame, per_second * QUEUE_NS // 10**9),
    )


@dataclass(frozen=True, slots=True)
class End:
    """One end of a link as the kernel will know it."""

    ifname: str
    namespace: str
    index: int
    mac: bytes


@dataclass(frozen=True, slots=True)
class Cable:
    """A link and its two ends, in the order of the link's."""

    link: Link
    a: End
    b: End


def cables(fabric: Fabric, names: Names) -> tuple[Cable, ...]:
    """Every link of a fabric, with namespace, interface index and MAC of both ends."""
    macs = {port.ref: port.mac for switch in fabric.switches for port in switch.ports}
    macs |= {port.ref: port.mac for host in fabric.hosts for port in host.ports}
    hosts = {host.name for host in fabric.hosts}
    used: dict[str, int] = {}
    found = []
    for link in fabric.links:
        ends = []
        for ref in (link.a, link.b):
            namespace = names.host(ref.node) if ref.node in hosts else names.fabric
            index = used[namespace] = used.get(namespace, FIRST_INDEX - 1) + 1
            ends.append(End(ref.ifname, namespace, index, macs[ref]))
        found.append(Cable(link, ends[0], ends[1]))
    return tuple(found)


def lay(fabric: Fabric, names: Names) -> None:
    """Makes every link of a fabric in its namespaces, which must be there, and brings both ends up.

    When it returns, a frame put in at one end comes out at the other. Raises MachineError where the kernel
    lacks what a link needs, NetlinkError where it refuses.
    """
    plan = cables(fabric, names)
    with ExitStack() as stack:
        fds: dict[str, int] = {}
        sockets: dict[str, tuple[Netlink, Ethtool]] = {}
        for namespace in dict.fromkeys(end.namespace for cable in plan for end in (cable.a, cable.b)):
            fds[namespace] = namespaces.open_fd(namespace)
            stack.callback(os.close, fds[namespace])
            with namespaces.inside(namespace):
                sockets[namespace] = (stack.enter_context(Netlink()), stack.enter_context(Ethtool()))
        _make(plan, fds, sockets[names.fabric][0])
        for namespace, (_, ethtool) in sockets.items():
            for end, _ in _ends(plan, namespace):
                ethtool.offloads_off(end.ifname)
        for namespace, (netlink, _) in sockets.items():
            if namespace == names.fabric:
                _shape_ports(plan, namespace, netlink)
            else:
                _shape(plan, namespace, netlink)
        for namespace, (netlink, _) in sockets.items():
            netlink.send(*(set_up(end.index, end.ifname) for end, _ in _ends(plan, namespace)))
        for namespace, (_, ethtool) in sockets.items():
            for end, _ in _ends(plan, namespace):
                ethtool.settle(end.ifname)


def _ends(plan: tuple[Cable, ...], namespace: str) -> Iterator[tuple[End, LinkProfile]]:
    for cable in plan:
        for end in (cable.a, cable.b):
            if end.namespace == namespace:
                yield end, cable.link.profile


def _make(plan: tuple[Cable, ...], fds: Mapping[str, int], netlink: Netlink) -> None:
    """Makes the pairs from the switches' namespace: the far end of each is a switch's (or a T1's)."""

    def end(which: End, profile: LinkProfile, fd: int | None) -> VethEnd:
        return VethEnd(which.ifname, which.index, which.mac, profile.mtu_bytes, TXQUEUELEN, GROUP, fd)

    messages = []
    for cable in plan:
        profile = cable.link.profile
        far_fd = fds[cable.a.namespace] if cable.a.namespace != cable.b.namespace else None
        messages.append(new_veth(end(cable.b, profile, None), end(cable.a, profile, far_fd)))
    try:
        netlink.send(*messages)
    except NetlinkError as error:
        if error.errno == 95:  # EOPNOTSUPP
            raise MachineError("the kernel has no veth", "enable CONFIG_VETH (modprobe veth)") from None
        raise


def _shape(plan: tuple[Cable, ...], namespace: str, netlink: Netlink) -> None:
    buckets: list[Message] = []
    delays: list[Message] = []
    for end, profile in _ends(plan, namespace):
        shape = shape_of(profile)
        buckets.append(
            tbf(
                end.index,
                end.ifname,
                rate_bps=shape.rate_bps,
                burst_bytes=shape.burst_bytes,
                limit_bytes=shape.limit_bytes,
            )
        )
        if profile.delay_ns:
            delays.append(_delay(end, profile, shape, LINK_CLASS))
    _send_qdiscs(netlink, buckets, "sch_tbf", "link rates", "CONFIG_NET_SCH_TBF")
    _send_qdiscs(netlink, delays, "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")


def _delay(end: End, profile: LinkProfile, shape: Shape, parent: int) -> Message:
    # In the delay line wait the frames under way and those of the queue, counted small (256 bytes).
    held = shape.limit_bytes + profile.rate_bps * profile.delay_ns // (8 * 10**9)
    packets = held // 256 + 1
    return netem(end.index, end.ifname, delay_ns=profile.delay_ns, limit_packets=packets, parent=parent)


def _shape_ports(plan: tuple[Cable, ...], namespace: str, netlink: Netlink) -> None:
    """Gives switch ports their rate and two classes, of which the high one is always sent first.

    How much may wait is the switch program's to say; the kernel only keeps a thousand frames from piling up
    where no program does.
    """
    buckets: list[Message] = []
    delays: list[Message] = []
    for end, profile in _ends(plan, namespace):
        shape = shape_of(profile)
        rate, own = shape.rate_bps, max(shape.rate_bps // OWN_SHARE, 8)
        burst, frame = shape.burst_bytes, profile.mtu_bytes + ETHERNET_HEADER

        def one(
            number: int, parent: int, rate: int, burst: int, order: int, end: End = end, ceil: int = rate
        ) -> Message:
            return htb_class(
                end.index,
                end.ifname,
                number=number,
                parent=parent,
                rate_bps=rate,
                ceil_bps=ceil,
                burst_bytes=burst,
                order=order,
            )

        buckets += [
            htb(end.index, end.ifname, default_class=DATA_CLASS),
            one(LINK_CLASS, 0, rate, burst, 0),
            one(HIGH_CLASS, LINK_CLASS, own, frame, 0),
            one(DATA_CLASS, LINK_CLASS, own, frame, 1),
        ]
        if profile.delay_ns:
            delays += [_delay(end, profile, shape, parent) for parent in (DATA_CLASS, HIGH_CLASS)]
    _send_qdiscs(netlink, buckets, "sch_htb", "link rates", "CONFIG_NET_SCH_HTB")
    _send_qdiscs(netlink, delays, "sch_netem", "link delays", "CONFIG_NET_SCH_NETEM")


def _send_qdiscs(netlink: Netlink, messages: list[Message], module: str, what: str, option: str) -> None:
    try:
        netlink.send(*messages)
    except NetlinkError as error:
        if error.errno == 2:  # ENOENT: "Specified qdisc kind is unknown"
            raise MachineError(
                f"the kernel has no {module}, which {what} need",
                f"enable {option} (modprobe {module})",
            ) from None
        raise


def cut(namespace: str) -> None:
    """Deletes all our interfaces of a namespace, and with them the other ends of their cables."""
    with namespaces.inside(namespace), Netlink() as netlink:
        try:
            netlink.send(delete_group(GROUP))
        except NetlinkError as error:
            if error.errno not in (19, 22):  # ENODEV (older: EINVAL): there are none
                raise
