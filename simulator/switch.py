"""A switch of the fabric: it treats frames as `p4src/mrc_switch.p4` does, with one decision for each header.

It takes its own uSID off the destination and sends the frame to the neighbour that the next one names. A
frame without a segment list for this switch goes by routes, among which a hash over the flow chooses (ECMP),
or some bits of a structured EV, or the load of the ports: for each frame (adaptive routing), or for each
flowlet, a part of a flow after a pause (Sinha, Kandula, Katabi, Harnessing TCP's Burstiness with Flowlet
Switching, HotNets 2004; Alizadeh et al., CONGA, SIGCOMM 2014). The decisions for one header are kept; a
change of routes discards them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from mrclab.hosts.rdma.icrc import crc32
from mrclab.p4src.contract import DROP_COUNT, Drop
from mrclab.simulator.headers import ev_of, hash_input
from mrclab.simulator.port import Hop, Node, Packet, Port

BLOCK_BYTES: Final = 4
SID_BYTES: Final = 6
_ZEROS: Final = bytes(10)
Spread = Literal["hash", "adaptive", "flowlet"]
"""What chooses among several routes: a hash of the flow, or the ports' loads, for each frame or flowlet."""


@dataclass(frozen=True)
class Tables:
    """A switch's forwarding state: its own SID, a port for each neighbour's SID, and routes to addresses.

    SIDs are prefixes of six bytes. A route is a list of port numbers; one that occurs twice has twice the
    share. An empty one leaves the choice to the EV: ``uplinks`` has the port of each uplink by its number,
    which the EV has in ``ev_mask`` after ``ev_shift`` bits.
    """

    own_sid: bytes
    neighbours: Mapping[bytes, int]
    routes: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    uplinks: Mapping[int, int] = field(default_factory=dict)
    ev_shift: int = 0
    ev_mask: int = 0
    spread: Spread = "hash"
    flowlet_ps: int = 0
    """The pause after which a flow may take another port."""


class Switch(Node):
    """One switch."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.name = name
        self.ports: dict[int, Port] = {}
        self.dead = False
        self.drops = [0] * DROP_COUNT
        """Packets dropped, by reason (mrclab.p4src.contract.Drop)."""
        self._tables = tables
        self._by_dst: dict[tuple[bytes, int], Hop] = {}
        """Decisions that the destination and the hop limit alone determine."""
        self._turn = 0
        """Of ports with equal loads, the next one is this far from the first."""
        self._flowlets: dict[bytes, tuple[int, Hop]] = {}
        """When a flow's last frame came, and the decision for its flowlet."""
        self._by_flow: dict[tuple[bytes, int], Hop] = {}
        """The decisions that the flow determines, by the input of the hash, or its EV and destination."""

    def set_tables(self, tables: Tables) -> None:
        """Replace the tables; frames that are on their way already follow them too."""
        self._tables = tables
        for known in (self._by_dst, self._by_flow):
            for hop in known.values():
                hop.valid = False
            known.clear()
        self._flowlets.clear()

    def arrive(self, packet: Packet) -> None:
        """Send a packet on, or drop it."""
        if self.dead:
            return
        before = packet.hop
        hop = before.after
        if hop is None or not hop.valid:
            hop = self.decide(packet)
            before.after = None if before.shared and not hop.shared else hop
        out = hop.out
        if out is None:
            if not hop.ways:
                self.drops[hop.drop] += 1
                return
            hop = self._choose(packet, hop.ways)
            out = hop.out
            assert out is not None
        packet.hop = hop
        if not out.put(packet):
            self.drops[Drop.TRIM_LIMIT if packet.trim_bytes else Drop.QUEUE_FULL] += 1

    def decide(self, packet: Packet) -> Hop:
        """Return what becomes of a packet that arrives with the header that its last hop gave it."""
        before = packet.hop
        key = before.dst, before.hop_limit
        known = self._by_dst.get(key)
        if known is not None:
            return known
        tables, dst = self._tables, before.dst
        if before.hop_limit <= 1:
            return self._keep(self._by_dst, key, Hop(dst, before.hop_limit, None, Drop.HOP_LIMIT, True))
        drop = Drop.NOT_OUR_SID
        if dst[:SID_BYTES] == tables.own_sid:
            if dst[SID_BYTES:] == _ZEROS:
                return self._keep(self._by_dst, key, Hop(dst, before.hop_limit, None, Drop.LIST_ENDED, True))
            dst = dst[:BLOCK_BYTES] + dst[SID_BYTES:] + b"\0\0"
            port = tables.neighbours.get(dst[:SID_BYTES])
            if port is not None:
                return self._keep(self._by_dst, key, self._hop(dst, before.hop_limit, port, True))
            drop = Drop.NO_ROUTE
        return self._route(packet, dst, drop)

    def _route(self, packet: Packet, dst: bytes, drop: Drop) -> Hop:
        """Return what becomes of a packet that follows no segment list of ours."""
        limit = packet.hop.hop_limit
        ways = self._tables.routes.get(dst)
        if ways == ():
            return self._climb(packet, dst, drop)
        if ways is None:
            return self._keep(self._by_dst, (packet.hop.dst, limit), Hop(dst, limit, None, drop, True))
        if len(ways) == 1:
            return self._keep(self._by_dst, (packet.hop.dst, limit), self._hop(dst, limit, ways[0], True))
        if self._tables.spread != "hash":
            group = Hop(dst, limit - 1, None, drop, True)
            group.ways = tuple(self._hop(dst, limit, port, True) for port in ways)
            return self._keep(self._by_dst, (packet.hop.dst, limit), group)
        key = hash_input(packet.frame, dst), limit
        known = self._by_flow.get(key)
        if known is not None:
            return known
        return self._keep(self._by_flow, key, self._hop(dst, limit, ways[crc32(key[0]) % len(ways)], False))

    def _choose(self, packet: Packet, ways: tuple[Hop, ...]) -> Hop:
        """Return the way of a frame among several: the port with the least load, equal ones in turns."""
        if self._tables.spread != "flowlet":
            return self._least(ways)
        out = ways[0].out
        assert out is not None
        now = out.clock.now_ps
        key = hash_input(packet.frame, ways[0].dst)
        last = self._flowlets.get(key)
        goes_on = last is not None and now - last[0] <= self._tables.flowlet_ps
        chosen = last[1] if last is not None and goes_on else self._least(ways)
        self._flowlets[key] = now, chosen
        return chosen

    def _least(self, ways: tuple[Hop, ...]) -> Hop:
        count = len(ways)
        self._turn = (self._turn + 1) % count
        best = ways[self._turn]
        assert best.out is not None
        now = best.out.clock.now_ps
        least = best.out.load_ps()
        for step in range(1, count):
            if least <= now:
                break
            other = ways[(self._turn + step) % count]
            assert other.out is not None
            load = other.out.load_ps()
            if load < least:
                best, least = other, load
        return best

    def _climb(self, packet: Packet, dst: bytes, drop: Drop) -> Hop:
        """Return what becomes of a packet whose EV names the uplink."""
        tables, limit = self._tables, packet.hop.hop_limit
        uplink = ev_of(packet.frame) >> tables.ev_shift & tables.ev_mask
        key = dst + uplink.to_bytes(2, "big"), limit
        known = self._by_flow.get(key)
        if known is not None:
            return known
        port = tables.uplinks.get(uplink)
        if port is None:
            return self._keep(self._by_flow, key, Hop(dst, limit, None, drop, False))
        return self._keep(self._by_flow, key, self._hop(dst, limit, port, False))

    def _hop(self, dst: bytes, hop_limit: int, port: int, shared: bool) -> Hop:
        out = self.ports[port]
        hop = Hop(dst, hop_limit - 1, out, 0, shared)
        hop.src_mac, hop.dst_mac = out.mac, out.peer_mac
        return hop

    @staticmethod
    def _keep(known: dict[tuple[bytes, int], Hop], key: tuple[bytes, int], hop: Hop) -> Hop:
        known[key] = hop
        return hop
