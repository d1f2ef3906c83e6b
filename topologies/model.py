"""The immutable model of a fabric, and the largest fabric that can run live on one machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from ipaddress import IPv6Address, IPv6Network
from itertools import pairwise

from mrclab.linux.errors import InputError
from mrclab.topologies.spec import LinkKind, LinkProfile, Tier
from mrclab.topologies.usid import MAX_INDEX, Role, UsidPlan

# The low half of an EV is the UDP source port of its packets. It starts at 0xC000, as in RoCEv2.
EV_PORT_BASE = 0xC000


@dataclass(frozen=True, slots=True)
class PortRef:
    """One end of a link: a node and the number of its port."""

    node: str
    port: int

    @property
    def ifname(self) -> str:
        """The name of this end's network interface: ``<node>-eth<N>``."""
        return f"{self.node}-eth{self.port}"


@dataclass(frozen=True, slots=True)
class NicPort:
    """A NIC's port to one plane. Each port has its own address (SPEC section 11.5)."""

    host: str
    plane: int
    ref: PortRef
    mac: bytes
    address: IPv6Address
    usid: int
    t0: str
    t0_mac: bytes

    @property
    def ifname(self) -> str:
        """The name of the port's network interface."""
        return self.ref.ifname


@dataclass(frozen=True, slots=True)
class Host:
    """A host with one NIC, which has one port per plane."""

    name: str
    index: int
    rack: int
    ports: tuple[NicPort, ...]


@dataclass(frozen=True, slots=True)
class SwitchPort:
    """A switch's port, numbered from 1, and the node at the other end of its link."""

    number: int
    ref: PortRef
    mac: bytes
    peer: PortRef
    peer_mac: bytes

    @property
    def ifname(self) -> str:
        """The name of the port's network interface."""
        return self.ref.ifname


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch, which belongs to one plane."""

    name: str
    device_id: int
    plane: int
    tier: Tier
    index: int
    usid: int
    ports: tuple[SwitchPort, ...]

    def port_to(self, node: str) -> SwitchPort:
        """Return the port whose link leads to ``node``. Raise KeyError if there is no such link."""
        for port in self.ports:
            if port.peer.node == node:
                return port
        raise KeyError(f"{self.name} has no link to {node}")


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two ports. ``a`` is the lower end: a host, a T0, or a T1 below a T2."""

    a: PortRef
    b: PortRef
    kind: LinkKind
    plane: int
    profile: LinkProfile

    @property
    def name(self) -> str:
        """The link's name, such as ``p0-t0-1:p0-t1-3``."""
        return f"{self.a.node}:{self.b.node}"


@dataclass(frozen=True, slots=True)
class Path:
    """A path from one NIC to another. The EV in a packet chooses the packet's path."""

    src: str
    dst: str
    plane: int
    t1: int | None
    ev: int
    segments: tuple[int, ...]
    outer_dst: IPv6Address
    nodes: tuple[str, ...]
    t2: int | None = None

    @property
    def links(self) -> tuple[str, ...]:
        """The names of the links (see ``Link.name``), in the order in which a packet passes them."""
        hops = tuple(pairwise(self.nodes))
        up = len(hops) // 2
        return tuple(f"{a}:{b}" for a, b in hops[:up]) + tuple(f"{b}:{a}" for a, b in hops[up:])


def ev_of(plane: int, uplink: int) -> int:
    """Return the EV of a path. The EV has the plane and ``uplink``, the number of the highest switch.

    With two tiers, the highest switch is a T1.
    """
    return plane << 16 | EV_PORT_BASE | uplink


def ev_fields(ev: int) -> tuple[int, int]:
    """Return the plane and the number of the highest switch from an EV that `ev_of` made."""
    return ev >> 16, ev & 0xFFFF & ~EV_PORT_BASE


@dataclass(frozen=True)
class Fabric:
    """A fabric: one or more planes, each a Clos of two or three tiers, with all names and addresses."""

    name: str
    planes: int
    hosts: tuple[Host, ...]
    switches: tuple[Switch, ...]
    links: tuple[Link, ...]
    plan: UsidPlan
    source: str = field(default="", compare=False)
    classes: tuple[tuple[int, str], ...] = ()
    """Pairs (DSCP, traffic class) that differ from `mrclab.p4src.contract.SWITCH_MAP`."""
    pods: int = 1

    @cached_property
    def _hosts(self) -> Mapping[str, Host]:
        return {host.name: host for host in self.hosts}

    @cached_property
    def _switches(self) -> Mapping[str, Switch]:
        return {switch.name: switch for switch in self.switches}

    @cached_property
    def _by_place(self) -> Mapping[tuple[int, Tier, int], Switch]:
        return {(switch.plane, switch.tier, switch.index): switch for switch in self.switches}

    @cached_property
    def _links(self) -> Mapping[str, Link]:
        return {link.name: link for link in self.links}

    @cached_property
    def uniform_profiles(self) -> tuple[LinkProfile, LinkProfile] | None:
        """The profiles of host links and fabric links, if all links of each kind have the same profile.

        If links of one kind differ, the value is None. It is also None for three tiers, because paths differ
        in length. If there are no T1s, both profiles are the profile of the host links.
        """
        if self.pods > 1:
            return None
        found: dict[LinkKind, set[LinkProfile]] = {"host": set(), "fabric": set()}
        for link in self.links:
            found[link.kind].add(link.profile)
        host, inner = found["host"], found["fabric"] or found["host"]
        return (next(iter(host)), next(iter(inner))) if len(host) == len(inner) == 1 else None

    def far_ends(self) -> tuple[str, str]:
        """Return the first host of the first rack, and the first host of the last rack.

        In a scenario, ``auto`` means these hosts.
        """
        racks = [host.rack for host in self.hosts]
        first, last = (
            next(host.name for host in self.hosts if host.rack == rack) for rack in (min(racks), max(racks))
        )
        return first, last

    def host(self, name: str) -> Host:
        """Return the host with this name. Raise KeyError if there is no such host."""
        return self._hosts[name]

    def switch(self, name: str) -> Switch:
        """Return the switch with this name. Raise KeyError if there is no such switch."""
        return self._switches[name]

    def link(self, a: str, b: str) -> Link:
        """Return the link between two nodes, in either order. Raise KeyError if there is no such link."""
        return self._links.get(f"{a}:{b}") or self._links[f"{b}:{a}"]

    def has_link(self, a: str, b: str) -> bool:
        """Return True if a link joins the two nodes."""
        return f"{a}:{b}" in self._links or f"{b}:{a}" in self._links

    def t0(self, plane: int, index: int) -> Switch:
        """Return the T0 of a plane and a rack. Raise KeyError if there is no such T0."""
        return self._by_place[plane, "t0", index]

    def tier(self, node: str) -> Tier | None:
        """Return the tier of a switch, or None for a host. Raise KeyError on an unknown node."""
        return None if node in self._hosts else self.switch(node).tier

    def pod_of(self, rack: int) -> int:
        """Return the pod of a rack. Without T2s, all racks are in pod 0."""
        return rack // (self._counts["t0"] // self.pods)

    @cached_property
    def t1s_per_pod(self) -> int:
        """The number of T1s per plane and pod. A T0 is linked only to T1s of its pod."""
        return self._counts["t1"] // self.pods

    @cached_property
    def _counts(self) -> Counter[Tier]:
        """The number of switches of each tier in a plane. It is the same in all planes."""
        return Counter(switch.tier for switch in self.switches if switch.plane == 0)

    def above(self, switch: Switch) -> Sequence[Switch]:
        """Return the switches of the next higher tier to which a switch is linked, in order."""
        return self._above[switch.name]

    @cached_property
    def _above(self) -> Mapping[str, Sequence[Switch]]:
        found: dict[str, list[Switch]] = {switch.name: [] for switch in self.switches}
        for link in self.links:  # link.a is the lower end of the link, link.b the upper end
            if link.a.node in found:
                found[link.a.node].append(self.switch(link.b.node))
        return found

    def t1s(self, plane: int) -> Iterator[Switch]:
        """Return the T1s of a plane, in order."""
        return (s for s in self.switches if s.plane == plane and s.tier == "t1")

    def sid(self, usid: int) -> IPv6Network:
        """Return the /48 prefix of a uSID in this fabric's locator block."""
        return self.plan.sid(usid)

    def paths(self, src: str, dst: str) -> tuple[Path, ...]:
        """Return all paths from one host's NIC to another host's NIC, sorted by plane and then by T1.

        In each plane, hosts of one rack have one path, over their T0. Between racks, there is a path for
        every T1 to which both T0s are linked. Between pods, there is a path for every T2 that is linked to a
        T1 of each pod. Raise KeyError for an unknown host, ValueError if src is dst.
        """
        a, b = self.host(src), self.host(dst)
        if a is b:
            raise ValueError(f"{src} has no path to itself")
        return tuple(path for plane in range(self.planes) for path in self._plane_paths(a, b, plane))

    def _plane_paths(self, a: Host, b: Host, plane: int) -> Iterator[Path]:
        up, down = self.t0(plane, a.rack), self.t0(plane, b.rack)
        nic = b.ports[plane].usid
        if up is down:
            yield self._path(a, b, plane, None, (up.usid, nic), (up.name,))
            return
        for t1 in self.above(up):
            if self.has_link(down.name, t1.name):
                segments = (up.usid, t1.usid, down.usid, nic)
                yield self._path(a, b, plane, t1.index, segments, (up.name, t1.name, down.name))
        if self.pod_of(a.rack) != self.pod_of(b.rack):
            yield from self._core_paths(a, b, plane)

    def _core_paths(self, a: Host, b: Host, plane: int) -> Iterator[Path]:
        """Return the paths over T2s. The two T1s of a path have the same number in their pods."""
        up, down = self.t0(plane, a.rack), self.t0(plane, b.rack)
        back = {t1.name: t1 for t1 in self.above(down)}
        for t1 in self.above(up):
            for t2 in self.above(t1):
                low = next((back[p.peer.node] for p in t2.ports if p.peer.node in back), None)
                if low is None:
                    continue
                segments = (up.usid, t1.usid, t2.usid, low.usid, down.usid, b.ports[plane].usid)
                nodes = (up.name, t1.name, t2.name, low.name, down.name)
                yield self._path(a, b, plane, t1.index, segments, nodes, t2.index)

    def _path(
        self,
        a: Host,
        b: Host,
        plane: int,
        t1: int | None,
        segments: tuple[int, ...],
        nodes: tuple[str, ...],
        t2: int | None = None,
    ) -> Path:
        return Path(
            src=a.name,
            dst=b.name,
            plane=plane,
            t1=t1,
            ev=ev_of(plane, (t1 or 0) if t2 is None else t2),
            segments=segments,
            outer_dst=self.plan.container(segments),
            nodes=(a.name, *nodes, b.name),
            t2=t2,
        )

    def usid_of(self, node: str, plane: int) -> int:
        """Return the uSID of a switch, or of a host's port to a plane. Raise KeyError for an unknown node."""
        host = self._hosts.get(node)
        return self.switch(node).usid if host is None else host.ports[plane].usid

    def node_of(self, usid: int) -> str:
        """Return the name of the node with this uSID. Raise KeyError if there is not exactly one such node.

        Raise ValueError if the number is no uSID.
        """
        plane, role, index = UsidPlan.fields(usid)
        if role is Role.NIC:
            if len(self.hosts) > MAX_INDEX + 1:
                raise KeyError(f"uSID {usid:#06x} names a NIC of each rack: {self.name} has too many for one")
            return self.hosts[index].name
        if role is Role.T0:
            return self._by_place[plane, "t0", index].name
        if index >= self._counts["t1"]:
            return self._by_place[plane, "t2", index - self._counts["t1"]].name
        return self._by_place[plane, "t1", index].name


MAX_LIVE_LINKS = 1000
"""The most links of a live fabric. The largest shipped live topology (wide) has 544 links."""


STRUCTURED_MEND = "structured EVs name the uplink of a T0 alone: use mrc or mrc-ecmp"


def require_live(fabric: Fabric) -> None:
    """Raise InputError if a fabric cannot run live: it has three tiers, or too many links for one machine."""
    require_two_tiers(fabric, "live switches forward over T0s and T1s: use --target sim")
    if len(fabric.links) > MAX_LIVE_LINKS:
        raise InputError(
            f"topology {fabric.name} has {len(fabric.links):,} links, and one machine carries "
            f"{MAX_LIVE_LINKS:,} at most: use --target sim"
        )


def require_two_tiers(fabric: Fabric, mend: str) -> None:
    """Raise InputError if a fabric has three tiers. ``mend`` is advice for the message."""
    if fabric.pods > 1:
        raise InputError(f"topology {fabric.name} has three tiers, and {mend}")
