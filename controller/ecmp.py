"""Routes for plain IPv6 between NIC ports: T0s choose uplinks by a hash of the flow, or by bits of the EV.

Each plane is a separate network. A T0 sends frames for its own hosts to their ports. For each other rack, a
T0 has a group of uplinks. A T1 has one link to each rack. If the link between a T0 and a T1 is withdrawn, all
groups of this T0 lose the uplink. The T1 cannot reach the rack of this T0 any more. So on each other T0, the
group for this rack loses the uplink to this T1. A routing protocol would have the same result, after a delay.

With structured EVs a T0 has no groups: the EV of a frame names the uplink. So no link can be withdrawn.

The switches keep their entries for SRv6. A frame's destination address selects SRv6 or plain IPv6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import IPv6Network
from typing import Any

import finsy as fy

from mrclab.controller.telemetry import read_all
from mrclab.linux.errors import InputError
from mrclab.p4src.contract import ROUTE_TABLE, UPLINK_TABLE, WAYS_PROFILE
from mrclab.topologies import Fabric, Switch
from mrclab.topologies.ev_paths import FIXED_BITS, UPLINK_BITS

SEND_TO = "send_to"
READ_EV = "read_ev"
READER_ID = 512
"""The member id of a `Reader`. The ids of other members are port numbers, which are all lower."""


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """A next hop: a port and the two Ethernet addresses of its link. The member's id is the port's number."""

    port: int
    src_mac: int
    dst_mac: int

    def to_p4(self) -> fy.P4ActionProfileMember:
        """Return the member as an object of finsy, the P4Runtime library."""
        action = fy.P4TableAction(SEND_TO, port=self.port, src_mac=self.src_mac, dst_mac=self.dst_mac)
        return fy.P4ActionProfileMember(WAYS_PROFILE, member_id=self.port, action=action)


@dataclass(frozen=True, slots=True, order=True)
class Reader:
    """The bits of an EV that a tier of switches reads: (EV >> ``shift``) & ``mask``."""

    shift: int
    mask: int

    def to_p4(self) -> fy.P4ActionProfileMember:
        """Return a member of the action profile that reads these bits of the EV, as an object of finsy.

        A switch that uses this member reads the path from the EV.
        """
        action = fy.P4TableAction(READ_EV, shift=self.shift, mask=self.mask)
        return fy.P4ActionProfileMember(WAYS_PROFILE, member_id=READER_ID, action=action)


@dataclass(frozen=True, slots=True, order=True)
class Uplink:
    """An uplink, with the number that EVs use for it."""

    number: int
    way: Member

    def to_p4(self) -> fy.P4TableEntry:
        """Return the entry as an object of finsy, the P4Runtime library."""
        way = self.way
        action = fy.Action(SEND_TO, port=way.port, src_mac=way.src_mac, dst_mac=way.dst_mac)
        return fy.P4TableEntry(UPLINK_TABLE, match=fy.Match(uplink=self.number), action=action)


@dataclass(frozen=True, slots=True, order=True)
class Group:
    """The ports to a rack, with weights. A hash chooses the port. The group's id is the rack's number + 1."""

    number: int
    ports: tuple[tuple[int, int], ...]

    def to_p4(self) -> fy.P4ActionProfileGroup:
        """Return the group as an object of finsy, the P4Runtime library."""
        members = [fy.P4Member(port, weight=weight) for port, weight in self.ports]
        return fy.P4ActionProfileGroup(WAYS_PROFILE, group_id=self.number, members=members)


@dataclass(frozen=True, slots=True, order=True)
class Route:
    """An address, and where frames to this address go: to a port, or to a group of ports."""

    prefix: str
    port: int | None = None
    group: int | None = None

    def to_p4(self) -> fy.P4TableEntry:
        """Return the route as an object of finsy, the P4Runtime library."""
        action = fy.P4IndirectAction(member_id=self.port, group_id=self.group)
        return fy.P4TableEntry(ROUTE_TABLE, match=fy.Match(dst_addr=self.prefix), action=action)


@dataclass(frozen=True, slots=True)
class Routing:
    """The entries of one switch for plain IPv6."""

    members: tuple[Member, ...] = ()
    groups: tuple[Group, ...] = ()
    routes: tuple[Route, ...] = ()
    readers: tuple[Reader, ...] = ()
    """If EVs are structured, the reader of a T0's uplink; otherwise no reader."""
    uplinks: tuple[Uplink, ...] = ()


def routing_of(
    fabric: Fabric,
    switch: Switch,
    withdrawn: AbstractSet[str] = frozenset(),
    weights: Mapping[str, int] | None = None,
    *,
    structured: bool = False,
) -> Routing:
    """Return a switch's entries for plain IPv6, without the links in ``withdrawn``.

    ``weights`` has the weights of uplinks in their T0's groups; all other uplinks have weight 1. With
    ``structured`` a T0 reads its uplink from the EV, and ``withdrawn`` and ``weights`` have no effect.
    """
    members = tuple(
        Member(p.number, int.from_bytes(p.mac, "big"), int.from_bytes(p.peer_mac, "big"))
        for p in switch.ports
    )
    groups: list[Group] = []
    routes: list[Route] = []
    racks = sorted({host.rack for host in fabric.hosts} - {switch.index}) if switch.tier == "t0" else []
    reads = structured and bool(racks)
    if not structured:
        for rack in racks:
            ports = _uplinks(fabric, switch, rack, withdrawn, weights or {})
            if ports:  # do not make an empty group: BMv2 would stop the ingress of a frame there
                groups.append(Group(rack + 1, ports))
    for host in fabric.hosts:
        prefix = str(IPv6Network(host.ports[switch.plane].address))
        if switch.tier == "t0" and host.rack != switch.index:
            if reads:
                routes.append(Route(prefix, port=READER_ID))
            elif any(group.number == host.rack + 1 for group in groups):
                routes.append(Route(prefix, group=host.rack + 1))
            continue
        below = host.name if switch.tier == "t0" else fabric.t0(switch.plane, host.rack).name
        if fabric.has_link(switch.name, below):
            routes.append(Route(prefix, port=switch.port_to(below).number))
    return Routing(
        members,
        tuple(groups),
        tuple(sorted(routes)),
        (Reader(FIXED_BITS, (1 << UPLINK_BITS) - 1),) if reads else (),
        _numbered(fabric, switch, members) if reads else (),
    )


def _numbered(fabric: Fabric, t0: Switch, members: Iterable[Member]) -> tuple[Uplink, ...]:
    ways = {member.port: member for member in members}
    return tuple(
        Uplink(t1.index, ways[t0.port_to(t1.name).number])
        for t1 in fabric.t1s(t0.plane)
        if fabric.has_link(t0.name, t1.name)
    )


def _uplinks(
    fabric: Fabric, t0: Switch, rack: int, withdrawn: AbstractSet[str], weights: Mapping[str, int]
) -> tuple[tuple[int, int], ...]:
    far = fabric.t0(t0.plane, rack).name
    ports = []
    for t1 in fabric.t1s(t0.plane):
        if not (fabric.has_link(t0.name, t1.name) and fabric.has_link(far, t1.name)):
            continue
        up, down = fabric.link(t0.name, t1.name).name, fabric.link(far, t1.name).name
        if up not in withdrawn and down not in withdrawn:
            ports.append((t0.port_to(t1.name).number, weights.get(up, 1)))
    return tuple(sorted(ports))


def updates(before: Routing, after: Routing) -> list[Any]:
    """Return the updates that change a switch from the state ``before`` to the state ``after``.

    The order of the updates ensures that no entry ever refers to an entry that does not exist.
    """
    routes = set(after.routes)
    gone: list[Any] = [-route.to_p4() for route in before.routes if route not in routes]
    new: list[Any] = []
    for had, now in reversed(list(zip(_by_key(before), _by_key(after), strict=True))):
        gone += [-entity.to_p4() for key, entity in had.items() if key not in now]
    for had, now in zip(_by_key(before), _by_key(after), strict=True):
        for key, entity in now.items():
            if key not in had:
                new.append(+entity.to_p4())
            elif had[key] != entity:
                new.append(~entity.to_p4())
    return gone + new + [+route.to_p4() for route in after.routes if route not in set(before.routes)]


def _by_key(routing: Routing) -> tuple[Mapping[int, Any], ...]:
    """Return all entries except routes, by id. An entry comes before the entries that refer to it."""
    return (
        {member.port: member for member in routing.members},
        {READER_ID: routing.readers[0]} if routing.readers else {},
        {uplink.number: uplink for uplink in routing.uplinks},
        {group.number: group for group in routing.groups},
    )


class EcmpRoutes:
    """Install the routes of a fabric's switches, withdraw links and restore them.

    There is one object for each fabric. ``switches`` are finsy's connected switches by name.
    """

    def __init__(
        self, fabric: Fabric, switches: Mapping[str, fy.Switch], weights: Mapping[str, int] | None = None
    ) -> None:
        self._fabric = fabric
        self._switches = switches
        self._weights = dict(weights or {})
        self._withdrawn: frozenset[str] = frozenset()
        self._installed = False
        self._structured = False

    @property
    def installed(self) -> bool:
        """True if install() was called. From then on, a switch that boots again needs its routes."""
        return self._installed

    @property
    def withdrawn(self) -> AbstractSet[str]:
        """The names of the withdrawn links, which no group uses."""
        return self._withdrawn

    def wanted(self, switch: str) -> Routing:
        """Return the entries that a switch should have now."""
        plan = self._fabric.switch(switch)
        return routing_of(self._fabric, plan, self._withdrawn, self._weights, structured=self._structured)

    async def install(self, *, structured: bool = False) -> None:
        """Install the wanted entries in all switches. If ``structured``, T0s read uplinks from the EVs."""
        self._installed, self._structured = True, structured
        await asyncio.gather(*(self.install_at(switch) for switch in self._switches.values()))

    async def install_at(self, switch: fy.Switch) -> None:
        """Install the wanted entries in one switch; write nothing if the switch has them already."""
        changes = updates(await read_routing(switch), self.wanted(switch.name))
        if changes:
            await switch.write(changes)

    async def withdraw(self, a: str, b: str) -> None:
        """Remove a link between T0 and T1 from all groups, with one write for each switch that used it.

        If the link was the last link to a rack, the routes to this rack are removed, too. A second call does
        nothing. Raise InputError if there is no such link, or if the link leads to a NIC. Raise InputError,
        too, if structured EVs choose the uplinks.
        """
        await self._change(self._withdrawn | {self._name(a, b)})

    async def restore(self, a: str, b: str) -> None:
        """Undo withdraw(), with one write for each switch."""
        await self._change(self._withdrawn - {self._name(a, b)})

    def _name(self, a: str, b: str) -> str:
        if not self._fabric.has_link(a, b):
            raise InputError(f"no link {a} - {b} in topology {self._fabric.name}")
        if self._structured:
            raise InputError("structured EVs name their uplinks: there is no route to withdraw")
        link = self._fabric.link(a, b)
        if link.kind != "fabric":
            raise InputError(
                f"link {link.name} is a host's only one to its plane: nothing to route around it"
            )
        return link.name

    async def _change(self, withdrawn: AbstractSet[str]) -> None:
        before = {name: self.wanted(name) for name in self._switches}
        self._withdrawn = frozenset(withdrawn)
        writes = []
        for name, switch in self._switches.items():
            changes = updates(before[name], self.wanted(name))
            if changes and switch.is_up:
                writes.append(switch.write(changes))
        await asyncio.gather(*writes)


async def read_routing(switch: fy.Switch) -> Routing:
    """Return the entries for ECMP that a switch has."""
    members, groups, routes = [], [], []
    readers, uplinks = [], []
    wanted: Sequence[Any] = (
        fy.P4ActionProfileMember(WAYS_PROFILE),
        fy.P4ActionProfileGroup(WAYS_PROFILE),
        fy.P4TableEntry(ROUTE_TABLE),
        fy.P4TableEntry(UPLINK_TABLE),
    )
    for entity in await read_all(switch, wanted):
        match entity:
            case fy.P4ActionProfileMember(action=fy.P4TableAction(name=name, args=args)):
                if name == READ_EV:
                    readers.append(Reader(int(args["shift"]), int(args["mask"])))
                else:
                    members.append(_member(args))
            case fy.P4ActionProfileGroup(group_id=number):
                groups.append(Group(number, _shares(entity.members or ())))
            case fy.P4TableEntry(match=fy.P4TableMatch() as match, action=fy.P4IndirectAction() as action):
                prefix = str(IPv6Network(match["dst_addr"]))
                routes.append(Route(prefix, action.member_id, action.group_id))
            case fy.P4TableEntry(match=fy.P4TableMatch() as match, action=fy.P4TableAction(args=args)):
                uplinks.append(Uplink(int(match["uplink"]), _member(args)))
    return Routing(
        tuple(sorted(members)),
        tuple(sorted(groups)),
        tuple(sorted(routes)),
        tuple(readers),
        tuple(sorted(uplinks)),
    )


def _member(args: Mapping[str, Any]) -> Member:
    return Member(*(int(args[name]) for name in ("port", "src_mac", "dst_mac")))


def _shares(members: Iterable[fy.P4Member]) -> tuple[tuple[int, int], ...]:
    return tuple(
        sorted((m.member_id, m.weight if isinstance(m.weight, int) else m.weight[0]) for m in members)
    )
