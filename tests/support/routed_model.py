"""The plain IPv6 routes that the controller writes, as table entries of the P4 model."""

from __future__ import annotations

from ipaddress import IPv6Network

from mrclab.controller.ecmp import READER_ID, Member, Routing
from mrclab.switches.p4_model import Exact, Prefix, Profile, Rule

ROUTE, UPLINK, WAYS = "MrcIngress.ecmp.route", "MrcIngress.ecmp.uplink", "MrcIngress.ecmp.ways"
SEND, READ = "MrcIngress.ecmp.send_to", "MrcIngress.ecmp.read_ev"


def routed_rules(routing: Routing) -> dict[str, list[Rule]]:
    """Return the rules of the two tables that contain routes."""
    routes = []
    for route in routing.routes:
        net = IPv6Network(route.prefix)
        key = (Prefix(int(net.network_address), net.prefixlen),)
        routes.append(Rule(key, member=route.port, group=route.group))
    uplinks = [Rule((Exact(u.number),), SEND, _args(u.way)) for u in routing.uplinks]
    return {ROUTE: routes, UPLINK: uplinks}


def routed_profile(routing: Routing) -> Profile:
    """Return the members and groups of the action profile."""
    members: dict[int, tuple[str, tuple[int, ...]]] = {m.port: (SEND, _args(m)) for m in routing.members}
    for reader in routing.readers:
        members[READER_ID] = READ, (reader.shift, reader.mask)
    groups = {g.number: [port for port, weight in g.ports for _ in range(weight)] for g in routing.groups}
    return Profile(members, groups)


def _args(way: Member) -> tuple[int, ...]:
    return way.port, way.src_mac, way.dst_mac
