"""A NIC whose packets cross as objects (`mrclab.hosts.mrc.codec.objects`): no bytes, no payload.

The rest is as with frames: the same packets at the same times. It is for MRC over segment lists, without
captures; it cannot find errors in bytes: messages are counted, not compared.
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.codec.values import DataPacket
from mrclab.hosts.mrc.codec.values import Packet as Item
from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.p4src.contract import TIMESTAMP_BYTES, TRIMMED_BYTES
from mrclab.simulator.clock import Clock
from mrclab.simulator.headers import ClassMap
from mrclab.simulator.nic import Nic
from mrclab.simulator.port import CONTROL, Hop, Packet, Port

FIRST_HOP_LIMIT: Final = 64


class ObjectNic(Nic):
    """One host's NIC for an endpoint that was made with `objects`."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        ports: list[Port],
        endpoint: Endpoint,
        classes: ClassMap,
        reaction_ns: int = 0,
        timer_grain_ns: int = 0,
        spare: list[Packet] | None = None,
    ) -> None:
        """Drive `endpoint` as `Nic` does. NICs of one network share their `spare` packets."""
        super().__init__(clock, name, ports, endpoint, classes, reaction_ns, timer_grain_ns)
        self._objects = endpoint
        self._routes: list[Hop] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        """The number of a route, by plane and destination."""
        self._spare: list[Packet] = [] if spare is None else spare
        """Packets that have arrived, to be used again: making one costs five times as much."""

    def receive(self, plane: int, packet: Packet, now_ns: int) -> None:
        """Hand the endpoint the object, marked or trimmed if the packet was."""
        item = packet.item
        assert isinstance(item, Item)
        if packet.corrupt >= 0:
            self._objects.drops.bad_icrc += 1
            return
        if packet.marked:
            item.ce = True
        if packet.cut_dscp >= 0:
            assert isinstance(item, DataPacket)
            item.cut(packet.cut_dscp, packet.size_bytes)
        self._objects.receive_packet(plane, item, now_ns)
        packet.item = None
        self._spare.append(packet)

    def send_over(self, free: list[int], now_ns: int) -> bool:
        """Send about as many packets as there are free ports; return False if there was no packet."""
        items = self._objects.packets_to_send(now_ns, free, len(free))
        for plane, item in items:
            if self.up[plane]:
                self.ports[plane].put(self._packet_of(plane, item))
        return bool(items)

    def _packet_of(self, plane: int, item: Item) -> Packet:
        flow = item.flow
        if flow.route < 0:
            flow.route = self._route_of(plane, flow.outer_dst)
        hop = self._routes[flow.route]
        classes = self.classes
        size = item.frame_bytes
        trim_bytes = 0
        if classes.trimmable[flow.dscp] and isinstance(item, DataPacket):
            trim_bytes = TRIMMED_BYTES + TIMESTAMP_BYTES if item.stamped else TRIMMED_BYTES
            if trim_bytes >= size:
                trim_bytes = 0
        priority = classes.priority[flow.dscp]
        if self._spare:
            packet = self._spare.pop()
            packet.use_again(size, hop, priority, trim_bytes, priority != CONTROL)
        else:
            packet = Packet(b"", size, hop, priority, trim_bytes, priority != CONTROL)
        packet.item = item
        return packet

    def _route_of(self, plane: int, outer_dst: bytes | None) -> int:
        """Return the number of the route over a plane to a destination."""
        assert outer_dst is not None, "objects follow segment lists"
        found = self._numbers.get((plane, outer_dst))
        if found is None:
            found = self._numbers[plane, outer_dst] = len(self._routes)
            self._routes.append(Hop(outer_dst, FIRST_HOP_LIMIT, self.ports[plane], 0, True))
        return found
