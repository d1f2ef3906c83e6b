"""The plan of probes: every round tests every link of a fabric in both directions. This module does no I/O.

A uSID container holds six uSIDs, so a probe can visit two T1s: ``T0 T1 T0 T1' T0 NIC`` tests the NIC's link
and two T0-T1 links in both directions. The pairs of T1s change in each round, as in a round-robin tournament.
The host that tests a pair also changes. So a few rounds are enough to isolate a bad link. Near a suspect,
shorter probes (``T0 NIC`` and ``T0 T1 T0 NIC``) test single links.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from mrclab.p4src.contract import CONTROL_DSCP, PROBE_PORT
from mrclab.topologies import Fabric, NicPort, Switch

PROBE_UDP_PORT = PROBE_PORT - 1  # not PROBE_PORT, because switches write into packets to that port
MAGIC = b"MAPP"
ID_OFFSET = 14 + 40 + 8 + len(MAGIC)
_PAYLOAD_BYTES = 24
_HOP_LIMIT = 64
_MIN_PAIRED = 3  # with at least this many T1s above a T0, a probe tests two of them


@dataclass(frozen=True, slots=True)
class Route:
    """A path out and back: the sending host, the plane, and the links that a probe on this path tests."""

    index: int
    host: str
    plane: int
    links: tuple[str, ...]
    frame: bytes
    """The bytes of a probe's frame before the probe's ID."""

    def probe(self, number: int) -> bytes:
        """Return the frame of one probe."""
        return self.frame + number.to_bytes(8, "big") + bytes(_PAYLOAD_BYTES - len(MAGIC) - 8)


@dataclass(frozen=True, slots=True)
class _Rack:
    """A T0 with the NIC ports below it and the T1s above it."""

    t0: Switch
    nics: tuple[NicPort, ...]
    t1s: tuple[str, ...]
    rounds: tuple[tuple[tuple[str, ...], ...], ...]
    """The pairs of T1s in each round. After the last round, the first round begins again."""


class ProbePlan:
    """All routes of a fabric, and the routes of each round.

    A T0 without hosts, or a T1 without T0s, cannot be reached by any probe and is left out.
    """

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.routes: list[Route] = []
        self._by_key: dict[tuple[str, int, tuple[str, ...]], Route] = {}
        self._racks = {s.name: self._rack(s) for s in fabric.switches if s.tier == "t0"}
        for rack in self._racks.values():
            company = {t1s for pairs in rack.rounds for t1s in pairs}
            for nic in rack.nics:
                for t1s in ((), *((t1,) for t1 in rack.t1s), *sorted(c for c in company if len(c) == 2)):
                    self._add(rack, nic, t1s)

    @cached_property
    def links(self) -> tuple[str, ...]:
        """The links that at least one route tests, in the fabric's order."""
        tested = {link for route in self.routes for link in route.links}
        return tuple(link.name for link in self.fabric.links if link.name in tested)

    @cached_property
    def through(self) -> dict[str, tuple[Route, ...]]:
        """The routes that test each link."""
        return {link: tuple(r for r in self.routes if link in r.links) for link in self.links}

    def round(self, number: int, suspects: Collection[str] = ()) -> list[Route]:
        """Return the routes of a round. Every link is in at least one route.

        Near ``suspects`` (names of T0s) each route tests as few links as possible.
        """
        found: list[Route] = []
        for name, rack in self._racks.items():
            if not rack.nics:
                continue
            if name in suspects:
                company: Sequence[tuple[str, ...]] = [(t1,) for t1 in rack.t1s]
                found += [self._route(nic, ()) for nic in rack.nics]
            else:
                company = rack.rounds[number % len(rack.rounds)]
            used = set()
            for place, t1s in enumerate(company):
                # The round number shifts the NICs, so that each NIC tests another T1 in each round.
                nic = rack.nics[(place + number) % len(rack.nics)]
                used.add(nic.host)
                found.append(self._route(nic, t1s))
            if name not in suspects:
                found += [self._route(nic, ()) for nic in rack.nics if nic.host not in used]
        return found

    def _rack(self, t0: Switch) -> _Rack:
        fabric = self.fabric
        nics = tuple(p for h in fabric.hosts for p in h.ports if p.t0 == t0.name)
        t1s = tuple(p.peer.node for p in t0.ports if fabric.tier(p.peer.node) == "t1")
        rounds = tuple(tuple(pairs) for pairs in _tournament(t1s))
        return _Rack(t0, nics, t1s, rounds)

    def _route(self, nic: NicPort, t1s: tuple[str, ...]) -> Route:
        return self._by_key[nic.host, nic.plane, t1s]

    def _add(self, rack: _Rack, nic: NicPort, t1s: tuple[str, ...]) -> None:
        fabric, t0 = self.fabric, rack.t0
        usids = [t0.usid]
        for t1 in t1s:
            usids += [fabric.switch(t1).usid, t0.usid]
        destination = fabric.plan.container([*usids, nic.usid]).packed
        links = (fabric.link(nic.host, t0.name).name, *(fabric.link(t0.name, t1).name for t1 in t1s))
        udp_bytes = 8 + _PAYLOAD_BYTES
        frame = nic.t0_mac + nic.mac + b"\x86\xdd"
        frame += (6 << 28 | CONTROL_DSCP << 22).to_bytes(4, "big")
        frame += udp_bytes.to_bytes(2, "big") + bytes((17, _HOP_LIMIT)) + nic.address.packed + destination
        frame += 2 * PROBE_UDP_PORT.to_bytes(2, "big") + udp_bytes.to_bytes(2, "big") + b"\0\0" + MAGIC
        route = Route(len(self.routes), nic.host, nic.plane, links, frame)
        self.routes.append(route)
        self._by_key[nic.host, nic.plane, t1s] = route


def _tournament(t1s: tuple[str, ...]) -> list[list[tuple[str, ...]]]:
    """Return rounds of pairs (circle method). Each round has each T1 once. Each pair is in one round."""
    if len(t1s) < _MIN_PAIRED:
        return [[(t1,) for t1 in t1s]]
    players: list[str | None] = [*t1s, *([None] if len(t1s) % 2 else [])]
    rounds = []
    for _ in range(len(players) - 1):
        half = len(players) // 2
        pairs = zip(players[:half], reversed(players[half:]), strict=True)
        rounds.append([tuple(sorted(t1 for t1 in pair if t1 is not None)) for pair in pairs])
        players = [players[0], players[-1], *players[1:-1]]
    return rounds
