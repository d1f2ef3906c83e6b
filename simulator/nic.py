"""A host's NIC: it drives an endpoint, and sends the endpoint's frames at the rates of the ports.

The endpoint is the same as on real sockets. The NIC does the work of hardware. It takes a frame from the
endpoint whenever a port is free. It passes arrived frames to the endpoint after a given delay, and calls the
endpoint when a timer expires. All work that arrives within that delay is done in one turn.

With `ObjectNic`, packets are objects (`mrclab.hosts.mrc.codec.objects`) without bytes and payload. The NIC
still sends the same packets at the same times. `ObjectNic` is for MRC over segment lists, without
captures. It cannot find errors in bytes, because messages are counted and not compared.
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
"""Timers run at the end of their nanosecond, after all frames that arrive in that nanosecond."""


class Program(Protocol):
    """A user of a NIC: it posts work, and receives the completions."""

    def tick(self, now_ns: int) -> int | None:
        """Do the work that is due. Return the time of the next call.

        If the result is None, the next call follows an event or `Nic.wake_now`.
        """

    def take(self, event: EndpointEvent) -> None:
        """Process an event of the endpoint."""


class Recorder(Protocol):
    """A recorder of a NIC's frames, like a packet capture."""

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record a frame."""


class _Turn(Event):
    """The event of a NIC's next turn."""

    __slots__ = ("_nic", "waits")

    def __init__(self, nic: Nic) -> None:
        super().__init__()
        self._nic = nic
        self.waits = False
        """True if this turn is scheduled and has not happened yet."""

    def happen(self) -> None:
        """Call the NIC's `turn`. Do nothing if an earlier turn was scheduled instead of this event."""
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
        """Drive `endpoint` over `ports`. The NIC reacts `reaction_ns` after the arrival of a frame.

        The NIC reads the endpoint's next timer only once in `timer_grain_ns`, so timers may be late by this
        time. Reading the timer after every packet would take a quarter of a run's time.
        """
        self.clock = clock
        self.name = name
        self.ports = list(ports)
        self.endpoint = endpoint
        self.programs: list[Program] = []
        self.recorder: Recorder | None = None
        self.turn_ps: i64 = NEVER_PS
        """The time of the next turn."""
        self._turn = _Turn(self)
        """The turn that was scheduled last."""
        self.classes = classes
        self._reaction_ps: i64 = reaction_ns * PS_PER_NS
        self._grain_ps: i64 = timer_grain_ns * PS_PER_NS
        self._timer_ns = NEVER_PS
        """Time of the endpoint's next timer, when the NIC last read this time."""
        self._ask_ps: i64 = 0
        """The time at which to read the next timer again."""
        self._programs_ns = 0
        """The time at which to call the programs if no event occurs before."""
        self._hops: dict[bytes, Hop] = {}
        self.up = [True] * len(self.ports)
        self._all_planes = list(range(len(self.ports)))
        self.frames_received = 0

    def now(self) -> int:
        """Return the time, ns."""
        return self.clock.now_ns

    def arrive(self, packet: Packet) -> None:
        """Pass a frame to the endpoint."""
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
        """Build the frame of a packet and pass it to the endpoint."""
        frame = frame_of(packet)
        if self.recorder is not None:
            self.recorder.note(now_ns, plane, frame, False)
        self.endpoint.receive(plane, frame, now_ns)

    def wake(self, at_ps: i64) -> None:
        """Schedule a turn at this time, unless an earlier turn is scheduled."""
        if at_ps < self.turn_ps:
            self.turn_ps = at_ps
            if self._turn.waits:
                self._turn = _Turn(self)
            self._turn.waits = True
            self.clock.at(at_ps, self._turn)

    def wake_now(self) -> None:
        """Schedule a turn now, which calls the programs. Call this if the NIC or a program has new work."""
        self._programs_ns = 0
        self.wake(self.clock.now_ps)

    def set_port_state(self, plane: int, up: bool) -> None:
        """Take down the carrier of a port, or restore it. The endpoint notices at once."""
        if self.up[plane] != up:
            self.up[plane] = up
            self.endpoint.set_port_state(plane, up, self.clock.now_ns)
            self.wake_now()

    def turn(self) -> None:
        """Do all work that is due: timers, the programs' work, and sending while ports are free."""
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
        """Pass the events to the programs, let them post, and return the time of their next call."""
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
        """Send while there are frames and free ports. Return the time at which to continue."""
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
        """Send about as many frames as there are free ports. Return False if there was no frame."""
        frames = self.endpoint.frames_to_send(now_ns, free, len(free))
        for plane, frame in frames:
            if self.recorder is not None:
                self.recorder.note(now_ns, plane, frame, True)
            if self.up[plane]:
                self.ports[plane].put(packet_of(frame, self._hop_of(plane, frame), self.classes))
        return bool(frames)

    def _hop_of(self, plane: int, frame: bytes) -> Hop:
        """Return the NIC's decision for a frame: to send the frame over this plane."""
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
    """One host's NIC for an endpoint that was created with `objects=True`: its packets are objects."""

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
        """Drive `endpoint` in the same way as `Nic`.

        `spare` has packets for reuse. All NICs of a network share this list.
        """
        super().__init__(clock, name, ports, endpoint, classes, reaction_ns, timer_grain_ns)
        self._objects = endpoint
        self._routes: list[Hop] = []
        self._numbers: dict[tuple[int, bytes], int] = {}
        """The number of a route, by plane and destination."""
        self._spare: list[Packet] = [] if spare is None else spare
        """Arrived packets, for reuse. To create a packet takes five times as long as to reuse a packet."""

    def receive(self, plane: int, packet: Packet, now_ns: int) -> None:
        """Pass the packet's object to the endpoint.

        If the packet was marked or trimmed, first change the object accordingly.
        """
        item = packet.item
        assert isinstance(item, Item)
        if packet.corrupt >= 0 and packet.cut_dscp < 0:
            self._objects.drops.bad_icrc += 1
            return
        if packet.marked:
            item.ce = True
        if packet.cut_dscp >= 0:
            assert isinstance(item, DataPacket)
            item.cut(packet.cut_dscp, packet.size_bytes)
            if packet.corrupt >= 0:  # a trimmed packet has lost its ICRC: nothing detects the wrong PSN
                item.flags_psn ^= 1 << int(packet.corrupt)
                packet.corrupt = -1
        self._objects.receive_packet(plane, item, now_ns)
        packet.item = None
        self._spare.append(packet)

    def send_over(self, free: list[int], now_ns: int) -> bool:
        """Send about as many packets as there are free ports. Return False if there was no packet."""
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
        assert outer_dst is not None, "objects follow segment lists"
        found = self._numbers.get((plane, outer_dst))
        if found is None:
            found = self._numbers[plane, outer_dst] = len(self._routes)
            self._routes.append(Hop(outer_dst, FIRST_HOP_LIMIT, self.ports[plane], 0, True))
        return found
