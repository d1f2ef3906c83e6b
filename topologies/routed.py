"""AS numbers and addresses of a routed fabric, as RFC 7938 section 5.2 advises. All addresses are IPv6."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from mrclab.topologies import Fabric, Link, Switch

LINK_BLOCK = IPv6Network("fd00:6d72:64::/48")  # addresses of links: a /127 for each link (RFC 6164)
T1_AS, FIRST_T0_AS = 4_200_000_000, 4_200_000_001  # private AS numbers of four bytes (RFC 6996)
BFD_MULTIPLIER = 3
MIN_BFD_INTERVAL_MS = 10  # the shortest interval that FRRouting's bfdd accepts
ROUTER_IDS = IPv4Address("10.0.0.0")


@dataclass(frozen=True, slots=True)
class Timers:
    """The timers by which a router detects that a neighbour is dead.

    ``keepalive_s`` and ``hold_s`` are timers of BGP. If ``bfd_interval_ms`` is not 0, BFD (RFC 5880) runs,
    too. BFD declares a neighbour dead after ``bfd_multiplier`` silent intervals.
    """

    keepalive_s: int = 1
    hold_s: int = 3
    bfd_interval_ms: int = 0
    bfd_multiplier: int = BFD_MULTIPLIER

    def __post_init__(self) -> None:
        if self.hold_s < 3 or self.keepalive_s < 1:
            raise ValueError("BGP knows no hold time below 3 s and no keepalive below 1 s (RFC 4271)")

    @classmethod
    def detecting_in(cls, detection_ns: int) -> Timers:
        """Return timers that detect a dead neighbour in this time: BFD for times below 3 s, otherwise BGP.

        Raise ValueError if no timer can have this value.
        """
        milliseconds = detection_ns // 10**6
        if milliseconds >= 3000:
            if milliseconds % 1000:
                raise ValueError("BGP's hold time is whole seconds")
            return cls(keepalive_s=milliseconds // 3000, hold_s=milliseconds // 1000)
        interval, rest = divmod(milliseconds, BFD_MULTIPLIER)
        if rest or interval < MIN_BFD_INTERVAL_MS:
            least = f"{MIN_BFD_INTERVAL_MS} ms or more"
            raise ValueError(f"BFD gives up after {BFD_MULTIPLIER} intervals of whole milliseconds, {least}")
        return cls(bfd_interval_ms=interval)


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A BGP session of a router: its interface, both addresses, and the neighbour's AS number."""

    ifname: str
    own: IPv6Address
    address: IPv6Address
    remote_as: int


@dataclass(frozen=True, slots=True)
class HostRoute:
    """A T0's route to a NIC port of a host: the T0's interface, the port's address and MAC."""

    ifname: str
    address: IPv6Address
    mac: bytes


@dataclass(frozen=True, slots=True)
class Router:
    """The complete configuration of one router."""

    name: str
    asn: int
    router_id: IPv4Address
    neighbours: tuple[Neighbour, ...]
    hosts: tuple[HostRoute, ...]


def plan(fabric: Fabric) -> tuple[Router, ...]:
    """Return the routers of a fabric. All T1s of a plane share an AS number. Each T0 has its own number."""
    addresses = {link.name: _addresses(number) for number, link in enumerate(_fabric_links(fabric))}
    return tuple(_router(fabric, switch, addresses) for switch in fabric.switches)


def _fabric_links(fabric: Fabric) -> list[Link]:
    return [link for link in fabric.links if link.kind == "fabric"]


def _addresses(number: int) -> tuple[IPv6Address, IPv6Address]:
    lower = int(LINK_BLOCK.network_address) | number << 1
    return IPv6Address(lower), IPv6Address(lower | 1)


def asn_of(switch: Switch) -> int:
    """Return the AS number of a switch."""
    return T1_AS if switch.tier == "t1" else FIRST_T0_AS + switch.index


def _router(fabric: Fabric, switch: Switch, addresses: dict[str, tuple[IPv6Address, IPv6Address]]) -> Router:
    neighbours = []
    hosts = []
    ports = {port.ref: port for host in fabric.hosts for port in host.ports}
    for port in switch.ports:
        if port.peer in ports:
            nic = ports[port.peer]
            hosts.append(HostRoute(port.ifname, nic.address, nic.mac))
            continue
        link = fabric.link(switch.name, port.peer.node)
        own, other = addresses[link.name]
        if link.a.node != switch.name:
            own, other = other, own
        neighbours.append(Neighbour(port.ifname, own, other, asn_of(fabric.switch(port.peer.node))))
    return Router(switch.name, asn_of(switch), ROUTER_IDS + switch.device_id, tuple(neighbours), tuple(hosts))


def expected_routes(fabric: Fabric) -> dict[str, dict[IPv6Address, int]]:
    """Return for each T0 the addresses of hosts in other racks, and the number of best paths to each."""
    found: dict[str, dict[IPv6Address, int]] = {}
    for switch in fabric.switches:
        if switch.tier != "t0":
            continue
        ways: dict[IPv6Address, int] = {}
        for host in fabric.hosts:
            if host.rack == switch.index:
                continue
            far = fabric.t0(switch.plane, host.rack)
            both = [
                t1
                for t1 in fabric.t1s(switch.plane)
                if fabric.has_link(switch.name, t1.name) and fabric.has_link(far.name, t1.name)
            ]
            if both:
                ways[host.ports[switch.plane].address] = len(both)
        found[switch.name] = ways
    return found
