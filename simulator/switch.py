"""A switch of the simulator: how it reads the header of a frame, and decides where the frame goes.

A frame is parsed when it enters the network and built when it leaves. In between,
`mrclab.simulator.port.Packet` has only the fields that switches change. The layout is the same as in
`p4src/headers.p4`:

    Ethernet 14 | IPv6 40 | UDP 8 | BTH ...
    Ethernet 14 | IPv6 40 | IPv6 40 | UDP 8 | BTH ...

A switch handles frames as `p4src/mrc_switch.p4` does. It removes its own uSID from the destination and sends
the frame to the neighbour with the next uSID. A frame without a segment list for this switch follows routes.
If there are several routes, the switch uses a hash of the flow (ECMP), some bits of a structured EV, or the
load of the ports. The load is compared for each frame (adaptive routing) or for each flowlet. A flowlet is a
part of a flow between two gaps (Sinha, Kandula, Katabi, Harnessing TCP's Burstiness with Flowlet Switching,
HotNets 2004; Alizadeh et al., CONGA, SIGCOMM 2014). The switch looks up its routes once for each different
header, and keeps the result until the routes change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from mrclab.hosts.rdma.frames import BTH_OFFSET, NEXT_IPV6, NEXT_UDP, PLAIN_BTH_OFFSET, crc32
from mrclab.p4src.contract import (
    DROP_COUNT,
    INNER_IPV6_BYTES,
    OUTER_BYTES,
    SWITCH_MAP,
    TIMESTAMP_BYTES,
    TRANSPORT_BYTES,
    Drop,
)
from mrclab.simulator.port import CONTROL, CUT, DATA, Hop, Node, Packet, Port

NEXT_HEADER: Final = 20
HOP_LIMIT: Final = 21
DST: Final = 38
OUTER_END: Final = 54
_TIMESTAMP_BIT: Final = 0x10
_FLAGS: Final = 8
_PSN: Final = 9
_CE: Final = 0x30
_PRIORITIES: Final = {"data": DATA, "trimmable": DATA, "high": CUT, "control": CONTROL}


class ClassMap:
    """The traffic class of each DSCP on the switches of a fabric."""

    def __init__(self, differing: Mapping[int, str] | None = None) -> None:
        """Use the default map of DSCPs to classes (p4src.contract.SWITCH_MAP), changed by ``differing``."""
        classes = {**SWITCH_MAP, **(differing or {})}
        self.priority = [_PRIORITIES[classes.get(dscp, "data")] for dscp in range(64)]
        self.trimmable = [classes.get(dscp, "data") == "trimmable" for dscp in range(64)]


def destination(frame: bytes) -> bytes:
    """Return the outer destination, which determines the forwarding."""
    return frame[DST:OUTER_END]


def packet_of(frame: bytes, hop: Hop, classes: ClassMap) -> Packet:
    """Return the packet for a frame that enters the network. `hop` is the hop that the sending NIC chose."""
    dscp = (frame[14] & 0xF) << 2 | frame[15] >> 6
    trim_bytes = 0
    if classes.trimmable[dscp]:
        trim_bytes = trimmed_bytes(frame)
        if trim_bytes >= len(frame):
            trim_bytes = 0
    return Packet(frame, len(frame), hop, classes.priority[dscp], trim_bytes, frame[15] & _CE != 0)


def trimmed_bytes(frame: bytes) -> int:
    """Return the length of a frame after trimming, or 0 if it is not an RDMA packet."""
    if frame[NEXT_HEADER] == NEXT_IPV6:
        if frame[NEXT_HEADER + INNER_IPV6_BYTES] != NEXT_UDP or len(frame) <= BTH_OFFSET + _FLAGS:
            return 0
        kept = OUTER_BYTES + INNER_IPV6_BYTES + TRANSPORT_BYTES
        flags = frame[BTH_OFFSET + _FLAGS]
    elif frame[NEXT_HEADER] == NEXT_UDP and len(frame) > PLAIN_BTH_OFFSET + _FLAGS:
        kept = OUTER_BYTES + TRANSPORT_BYTES
        flags = frame[PLAIN_BTH_OFFSET + _FLAGS]
    else:
        return 0
    return kept + TIMESTAMP_BYTES if flags & _TIMESTAMP_BIT else kept


def frame_of(packet: Packet) -> bytes:
    """Return the frame as it leaves the network."""
    frame, hop = packet.frame, packet.hop
    first = frame[14:16]
    if packet.marked:
        first = bytes((first[0], first[1] | _CE))
    limit = bytes((hop.hop_limit,))
    if packet.cut_dscp < 0 and packet.corrupt < 0:
        return b"".join(
            (
                hop.dst_mac,
                hop.src_mac,
                frame[12:14],
                first,
                frame[16:HOP_LIMIT],
                limit,
                frame[22:DST],
                hop.dst,
                frame[OUTER_END:],
            )
        )
    changed = bytearray(frame[: packet.size_bytes])
    changed[0:12] = hop.dst_mac + hop.src_mac
    changed[14:16] = first
    changed[HOP_LIMIT] = hop.hop_limit
    changed[DST:OUTER_END] = hop.dst
    if packet.cut_dscp >= 0:
        _shorten(changed, packet.cut_dscp)
    if packet.corrupt >= 0:
        bth = BTH_OFFSET if changed[NEXT_HEADER] == NEXT_IPV6 else PLAIN_BTH_OFFSET
        changed[bth + _PSN + 2 - (packet.corrupt >> 3)] ^= 1 << (packet.corrupt & 7)
    return bytes(changed)


def _shorten(frame: bytearray, dscp: int) -> None:
    """Change the headers of a trimmed frame: the DSCP, and all lengths."""
    frame[14] = frame[14] & 0xF0 | dscp >> 2
    frame[15] = frame[15] & 0x3F | (dscp & 3) << 6
    left = len(frame) - OUTER_BYTES
    frame[18:20] = left.to_bytes(2, "big")
    udp = OUTER_END
    if frame[NEXT_HEADER] == NEXT_IPV6:
        left -= INNER_IPV6_BYTES
        frame[OUTER_END + 4 : OUTER_END + 6] = left.to_bytes(2, "big")
        udp += INNER_IPV6_BYTES
    frame[udp + 4 : udp + 6] = left.to_bytes(2, "big")


def ev_of(frame: bytes) -> int:
    """Return the EV of a frame without a segment list, as in `p4src/ecmp.p4`.

    It is made of 16 bits of the flow label and the UDP source port.
    """
    udp = OUTER_END
    protocol = frame[NEXT_HEADER]
    if protocol == NEXT_IPV6:
        protocol = frame[NEXT_HEADER + INNER_IPV6_BYTES]
        udp += INNER_IPV6_BYTES
    port = frame[udp] << 8 | frame[udp + 1] if protocol == NEXT_UDP else 0
    return frame[16] << 24 | frame[17] << 16 | port


def hash_input(frame: bytes, dst: bytes) -> bytes:
    """Return the input of ECMP's hash: addresses, flow label, protocol and ports, as in `p4src/ecmp.p4`."""
    protocol, sport, dport = frame[NEXT_HEADER], 0, 0
    udp = OUTER_END
    if protocol == NEXT_IPV6:
        protocol = frame[NEXT_HEADER + INNER_IPV6_BYTES]
        udp += INNER_IPV6_BYTES
    if protocol == NEXT_UDP:
        sport = frame[udp] << 8 | frame[udp + 1]
        dport = frame[udp + 2] << 8 | frame[udp + 3]
    label = (frame[15] & 0xF) << 16 | frame[16] << 8 | frame[17]
    rest = (label << 40 | protocol << 32 | sport << 16 | dport) << 4
    return frame[22:DST] + dst + rest.to_bytes(8, "big")


BLOCK_BYTES: Final = 4
SID_BYTES: Final = 6
_ZEROS: Final = bytes(10)
Spread = Literal["hash", "adaptive", "flowlet"]
"""How a switch chooses among several routes: a hash of the flow, or the load for each frame or flowlet."""


@dataclass(frozen=True)
class Tables:
    """A switch's forwarding state: its own SID, a port for each neighbour's SID, and routes to addresses.

    SIDs are prefixes of six bytes. A route is a list of port numbers. A port that occurs twice gets twice as
    much traffic. If the list is empty, the EV chooses an uplink. The uplink's number is ``ev >> ev_shift &
    ev_mask``; ``uplinks`` has its port.
    """

    own_sid: bytes
    neighbours: Mapping[bytes, int]
    routes: Mapping[bytes, tuple[int, ...]] = field(default_factory=dict)
    uplinks: Mapping[int, int] = field(default_factory=dict)
    ev_shift: int = 0
    ev_mask: int = 0
    spread: Spread = "hash"
    flowlet_ps: int = 0
    """A flow may use another port after a gap of this length between two of its frames."""


class Switch(Node):
    """One switch."""

    def __init__(self, name: str, tables: Tables) -> None:
        self.name = name
        self.ports: dict[int, Port] = {}
        self.dead = False
        self.drops = [0] * DROP_COUNT
        """Number of dropped packets, by reason (mrclab.p4src.contract.Drop)."""
        self._tables = tables
        self._by_dst: dict[tuple[bytes, int], Hop] = {}
        """Decisions that depend only on the destination and the hop limit."""
        self._turn = 0
        """The position at which the search for the least loaded port begins. Each frame advances it."""
        self._flowlets: dict[bytes, tuple[int, Hop]] = {}
        """The time of a flow's last frame, and the decision for its flowlet."""
        self._by_flow: dict[tuple[bytes, int], Hop] = {}
        """Decisions for a flow. The key contains the hash's input, or the destination and the EV's uplink."""

    def set_tables(self, tables: Tables) -> None:
        """Replace the tables. Frames that are already on their way follow the new tables, too."""
        self._tables = tables
        for known in (self._by_dst, self._by_flow):
            for hop in known.values():
                hop.valid = False
            known.clear()
        self._flowlets.clear()

    def arrive(self, packet: Packet) -> None:
        """Forward a packet, or drop it."""
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
        """Return the next hop of a packet. It depends on the header that the previous switch or NIC sent."""
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
        """Return the next hop of a packet without a segment list for this switch."""
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
        """Choose the port with the least load. Ports with the same load take turns."""
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
        """Return the next hop of a packet whose EV names the uplink."""
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
