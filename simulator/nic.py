"""A host's NIC: it drives an endpoint, and paces its frames to the rates of the ports.

The endpoint is the one that runs on real sockets. The NIC does the work of hardware: it takes a frame from
the endpoint whenever a port is free, passes arrived frames to it after a stated delay, and wakes it when its
timers are due. Work that arrives within that delay is done in one turn.

With `ObjectNic` packets cross as objects (`mrclab.hosts.mrc.codec.objects`): no bytes, no payload. The rest
is as with frames: the same packets at the same times. It is for MRC over segment lists, without captures; it
cannot find errors in bytes: messages are counted, not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from mypy_extensions import i64

from mrclab.hosts.mrc.endpoint import Endpoint
from mrclab.hosts.mrc.packets import DataPacket
from mrclab.hosts.mrc.packets import Packet as Item
from mrclab.hosts.rdma.endpoint import BaseEndpoint
from mrclab.hosts.rdma.events import Event as EndpointEvent
from mrclab.p4src.contract import TIMESTAMP_BYTES, TRIMMED_BYTES
from mrclab.simulator.clock import NEVER_PS, PS_PER_NS, Clock, Event
from mrclab.simulator.port import CONTROL, Hop, Node, Packet, Port
from mrclab.simulator.switch import (
    HOP_LIMIT,
    NEXT_HEADER,
    OUTER_END,
    ClassMap,
    destination,
    frame_of,
    packet_of,
)

_HOPS_KEPT: Final = 1 << 14
_NEVER_NS: Final = NEVER_PS // PS_PER_NS
_LAST_PS: Final = PS_PER_NS - 1
"""Timers are served at the end of their nanosecond, so that what arrives in it is read first."""


class Program(Protocol):
    """A user of a NIC: it posts work, and receives the outcome."""

    def tick(self, now_ns: int) -> int | None:
        """Do the work that is due; return when to call again, None: not before an event or `Nic.wake_now`."""

    def take(self, event: EndpointEvent) -> None:
        """Take in an event of the endpoint."""


class Recorder(Protocol):
    """What records frames at a NIC as a packet capture would."""

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record a frame."""


class _Turn(Event):
    """The moment of a NIC's next turn."""

    __slots__ = ("_nic", "waits")

    def __init__(self, nic: Nic) -> None:
        super().__init__()
        self._nic = nic
        self.waits = False
        """It has been scheduled, and has not happened yet."""

    def happen(self) -> None:
        """Do the turn, unless another one has come before it."""
        self.waits = False
        if self._nic.turn_ps == self.at_ps:
            self._nic.turn()


class Nic(Node):
    """One host's NIC with its ports, in the order of the planes."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        ports: Sequence[Port],
        endpoint: BaseEndpoint,
        classes: ClassMap,
        reaction_ns: int = 0,
        timer_grain_ns: int = 0,
    ) -> None:
        """Drive `endpoint` over `ports`; it answers `reaction_ns` after something has arrived.

        The NIC reads the endpoint's next timer once in `timer_grain_ns`, by which timers may be late: reading
        it after every packet takes a quarter of a run's time.
        """
        self.clock = clock
        self.name = name
        self.ports = list(ports)
        self.endpoint = endpoint
        self.programs: list[Program] = []
        self.recorder: Recorder | None = None
        self.turn_ps: i64 = NEVER_PS
        """When the next turn is due."""
        self._turn = _Turn(self)
        """The turn that was scheduled last."""
        self.classes = classes
        self._reaction_ps: i64 = reaction_ns * PS_PER_NS
        self._grain_ps: i64 = timer_grain_ns * PS_PER_NS
        self._timer_ns = NEVER_PS
        """When the endpoint's next timer is due, as it said last."""
        self._ask_ps: i64 = 0
        """When to ask it again."""
        self._programs_ns = 0
        """When the programs want to be called, if nothing happens before."""
        self._hops: dict[bytes, Hop] = {}
        self.up = [True] * len(self.ports)
        self._all_planes = list(range(len(self.ports)))
        self.frames_received = 0

    def now(self) -> int:
        """Return the time, ns."""
        return self.clock.now_ns

    # What comes in

    def arrive(self, packet: Packet) -> None:
        """Hand a frame to the endpoint."""
        port = packet.port
        assert port is not None
        plane = port.peer_port
        if not self.up[plane]:
            return
        clock = self.clock
        now_ns = int(clock.now_ps // PS_PER_NS)
        self.frames_received += 1
        self.receive(plane, packet, now_ns)
        self.wake(clock.now_ps + self._reaction_ps)

    def receive(self, plane: int, packet: Packet, now_ns: int) -> None:
        """Pass the endpoint the frame that a packet stands for."""
        frame = frame_of(packet)
        if self.recorder is not None:
            self.recorder.note(now_ns, plane, frame, False)
        self.endpoint.receive(plane, frame, now_ns)

    def wake(self, at_ps: i64) -> None:
        """Have a turn at this time, or before."""
        if at_ps < self.turn_ps:
            self.turn_ps = at_ps
            if self._turn.waits:
                self._turn = _Turn(self)
            self._turn.waits = True
            self.clock.at(at_ps, self._turn)

    def wake_now(self) -> None:
        """Have a turn now, and call the programs: something was posted, or has changed."""
        self._programs_ns = 0
        self.wake(self.clock.now_ps)

    def set_port_state(self, plane: int, up: bool) -> None:
        """Take the carrier of a port away, or give it back; the endpoint notices at once."""
        if self.up[plane] != up:
            self.up[plane] = up
            self.endpoint.set_port_state(plane, up, self.clock.now_ns)
            self.wake_now()

    # A turn

    def turn(self) -> None:
        """Do all work that is due: timers, the programs' work, and sending as far as ports are free."""
        clock, endpoint = self.clock, self.endpoint
        now_ps = clock.now_ps
        now_ns = int(now_ps // PS_PER_NS)
        self.turn_ps = NEVER_PS
        if self._timer_ns <= now_ns:
            endpoint.handle_timer(now_ns)
            self._ask_ps = now_ps
        if now_ns >= self._programs_ns or endpoint.reports.waiting:
            self._programs_ns = self._run_programs(now_ns)
        next_ns = self._programs_ns
        next_ps = self._send(now_ps, now_ns)
        if now_ps >= self._ask_ps:
            due = endpoint.next_timer()
            self._timer_ns = NEVER_PS if due is None else due
            self._ask_ps = now_ps + self._grain_ps
        elif self._ask_ps < next_ps:
            next_ps = self._ask_ps
        if self._timer_ns < next_ns:
            next_ns = self._timer_ns
        if next_ns < _NEVER_NS:
            due_ps: i64 = next_ns * PS_PER_NS + _LAST_PS
            if due_ps < now_ps + PS_PER_NS:
                due_ps = now_ps + PS_PER_NS
            if due_ps < next_ps:
                next_ps = due_ps
        if next_ps < NEVER_PS:
            self.wake(next_ps)

    def _run_programs(self, now_ns: int) -> int:
        """Pass the events to the programs, let them post, and return when they want to be called."""
        next_ns = NEVER_PS
        programs = self.programs
        endpoint = self.endpoint
        while (event := endpoint.next_event()) is not None:
            for program in programs:
                program.take(event)
        for program in programs:
            due = program.tick(now_ns)
            if due is not None and due < next_ns:
                next_ns = due
        return next_ns

    def _send(self, now_ps: i64, now_ns: int) -> i64:
        """Send while there are frames and free ports; return when to go on."""
        ports = self.ports
        while True:
            free: i64 = 0
            soonest: i64 = NEVER_PS
            for plane, port in enumerate(ports):
                busy = port.busy_until_ps()
                if busy <= now_ps:
                    if self.up[plane]:
                        free += 1
                elif busy < soonest:
                    soonest = busy
            if not free:
                return soonest
            planes = self._all_planes
            if free < len(ports):
                planes = [n for n in planes if self.up[n] and ports[n].busy_until_ps() <= now_ps]
            if not self.send_over(planes, now_ns):
                return soonest

    def send_over(self, free: list[int], now_ns: int) -> bool:
        """Send about as many frames as there are free ports; return False if there was no frame."""
        frames = self.endpoint.frames_to_send(now_ns, free, len(free))
        for plane, frame in frames:
            if self.recorder is not None:
                self.recorder.note(now_ns, plane, frame, True)
            if self.up[plane]:
                self.ports[plane].put(packet_of(frame, self._hop_of(plane, frame), self.classes))
        return bool(frames)

    def _hop_of(self, plane: int, frame: bytes) -> Hop:
        """Return the NIC's own action for a frame: to send it, and nothing else."""
        key = frame[14 : OUTER_END + 4]
        found = self._hops.get(key)
        if found is None:
            if len(self._hops) >= _HOPS_KEPT:
                self._hops.clear()
            shared = frame[NEXT_HEADER] == 41
            found = Hop(destination(frame), frame[HOP_LIMIT], self.ports[plane], 0, shared)
            self._hops[key] = found
        return found


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
