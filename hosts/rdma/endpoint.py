"""One NIC: ports, memory and queue pairs, without its own I/O, clock or randomness.

The driver (sockets, or a simulated network) repeats these steps:

    for each frame that came in:    endpoint.receive(port, frame, now_ns)
    when next_timer() has passed:   endpoint.handle_timer(now_ns)
    until it returns nothing:       endpoint.frames_to_send(now_ns)
    for event in endpoint.events(): hand it to the application

Then the driver sleeps until a frame arrives or until `next_timer()`. The driver must read arrived frames
before it handles timers. Otherwise a packet could count as lost although its acknowledgement has arrived.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.events import Drops, Event, ReceiveCompleted, SendCompleted, Unmade
from mrclab.hosts.rdma.frames import (
    BTH_OFFSET,
    FLOW_START,
    MIN_LENGTH_AFTER_BTH,
    NEXT_HEADER_OFFSET,
    NEXT_IPV6,
    PLAIN_BTH_OFFSET,
    RESIDUE,
    Flow,
    FlowCache,
    Frame,
    Outgoing,
    crc32,
)
from mrclab.hosts.rdma.memory import Access, MemoryRegion, MemoryTable
from mrclab.hosts.rdma.paths import PortAddress, RemotePaths
from mrclab.hosts.rdma.scheduler import Scheduler

FIRST_QPN: Final = 0x10
LAST_QPN: Final = 0xFFFFFF
_ADDRESSES: Final = 1 << 64
_EVENT_LIMIT: Final = 1 << 16
_RESERVED_BYTE: Final = 4
_view: Final = memoryview  # In compiled code, names of the module are faster than builtins.

Completion = SendCompleted | ReceiveCompleted


class Reports:
    """All completions, and the last 65,536 other events, until the application takes them."""

    __slots__ = ("_completions", "_events", "waiting")

    def __init__(self) -> None:
        self.waiting = False
        """False: the application has taken all events. True: there may be more events."""
        self._events: deque[Event | Unmade] = deque(maxlen=_EVENT_LIMIT)
        self._completions: deque[Completion] = deque()

    @property
    def message_waits(self) -> bool:
        """True if a message has arrived whose completion the application has not taken yet."""
        return any(isinstance(completion, ReceiveCompleted) for completion in self._completions)

    def add(self, event: Event) -> None:
        """Store an event."""
        self.waiting = True
        if isinstance(event, (SendCompleted, ReceiveCompleted)):
            self._completions.append(event)
        else:
            self._events.append(event)

    def add_later(self, kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        """Store the class and values of an event, which is created later. Completions are not allowed."""
        self.waiting = True
        self._events.append(Unmade(kind, values))

    def poll(self, limit: int) -> list[Completion]:
        """Remove and return up to `limit` completions, oldest first."""
        return [self._completions.popleft() for _ in range(min(limit, len(self._completions)))]

    def next_event(self) -> Event | None:
        """Remove and return the oldest event or completion; None if there is none."""
        if not self._events:
            if self._completions:
                return self._completions.popleft()
            self.waiting = False
            return None
        first = self._events[0]
        event = first.kind(*first.values) if isinstance(first, Unmade) else first
        if self._completions and self._completions[0].t_ns < event.t_ns:
            self._events[0] = event
            return self._completions.popleft()
        self._events.popleft()
        return event

    def drain(self) -> Iterator[Event]:
        """Remove and yield all events and completions, oldest first."""
        while (event := self.next_event()) is not None:
            yield event


class PortState:
    """A port of the NIC: its own address and its counters."""

    __slots__ = ("address", "listens", "received", "sent")

    def __init__(self) -> None:
        self.address = b""
        self.listens = False
        """True: the port is up and receives frames."""
        self.received = 0
        self.sent = 0


@mypyc_attr(allow_interpreted_subclasses=True)
class BaseEndpoint:
    """The common part of the endpoints of all transports."""

    def __init__(
        self, ports: Sequence[PortAddress], rng: random.Random, flows: FlowCache, packet_bytes: int
    ) -> None:
        """Make a NIC with these ports. `rng` is the only source of randomness."""
        self.ports = tuple(ports)
        self.rng = rng
        self.addresses: dict[int, bytes] = {port.port: port.address for port in self.ports}
        self.port_states = [PortState() for _ in range(max(self.addresses, default=-1) + 1)]
        """The state of each port, by port number. If a number has no port, its entry is unused."""
        for number, address in self.addresses.items():
            self.port_states[number].address = address
            self.port_states[number].listens = True
        self._flows = flows
        self._known_flows = flows.flows
        self._min_frame = flows.min_frame
        self._needs_outer = flows.needs_outer
        self.memory = MemoryTable(self.rng)
        self.scheduler = Scheduler(packet_bytes)
        self._operations_last = False
        """If True, queue pairs may send before endpoint operations in the next call."""
        self.reports = Reports()
        self.repairs_wait = False
        """True: a loss or a new gap was found. The driver should send before it reads more frames."""
        self.now_ns = 0
        """Time of the last call, ns."""
        self.drops = Drops()

    @property
    def frames_received(self) -> dict[int, int]:
        """Number of frames that each port has received."""
        return {number: self.port_states[number].received for number in self.addresses}

    def draw_qpn(self, taken: Container[int], count: int = 1) -> int:
        """Return the first of `count` consecutive numbers for new queue pairs, chosen at random.

        The numbers are not in `taken`. The choice is random, so that the numbers are hard to guess.
        """
        while True:
            qpn = self.rng.randrange(FIRST_QPN, LAST_QPN - count + 2)
            if not any(qpn + i in taken for i in range(count)):
                return qpn

    # Verbs of the application

    def register_memory(
        self, buffer: bytearray | memoryview, access: Access = Access.REMOTE_WRITE
    ) -> MemoryRegion:
        """Allow peers to write into `buffer`. They need the region's `address` and `rkey`."""
        return self.memory.register(buffer, access)

    def deregister_memory(self, region: MemoryRegion) -> None:
        """Close a region. A write that arrives for it later is an access error."""
        self.memory.deregister(region)

    @property
    def message_waits(self) -> bool:
        """True if a message has arrived whose completion the application has not taken yet."""
        return self.reports.message_waits

    def poll_cq(self, limit: int = 64) -> list[Completion]:
        """Remove and return up to `limit` completions of all queue pairs, oldest first."""
        return self.reports.poll(limit)

    def next_event(self) -> Event | None:
        """Remove and return the oldest event or completion; None if there is none."""
        return self.reports.next_event()

    def events(self) -> Iterator[Event]:
        """Remove and yield all events and completions, oldest first, except those taken by `poll_cq`."""
        return self.reports.drain()

    def check_peer(self, udp_port: int, own_udp_ports: Collection[int], paths: RemotePaths) -> None:
        """Raise ValueError if the peer's UDP port is not accepted, or if this NIC lacks a port of `paths`."""
        if udp_port not in own_udp_ports:
            ours = " or ".join(str(port) for port in sorted(own_udp_ports))
            raise ValueError(f"the peer uses UDP port {udp_port}, we use {ours}")
        for plane in paths.planes:
            if plane.port not in self.addresses:
                raise ValueError(f"paths name port {plane.port}, which this NIC does not have")

    # Verbs of the driver

    def receive(self, port: int, frame: bytes | bytearray | memoryview, now_ns: int) -> None:
        """Handle a whole Ethernet frame that arrived on `port`. The endpoint keeps no reference to it."""
        self.now_ns = now_ns
        length = len(frame)
        if length < self._min_frame:
            self.drops.too_short += 1
            return
        bth = BTH_OFFSET
        if not self._needs_outer:
            if frame[NEXT_HEADER_OFFSET] != NEXT_IPV6:
                bth = PLAIN_BTH_OFFSET
            elif length < BTH_OFFSET + MIN_LENGTH_AFTER_BTH:
                # This frame has an outer header, so it must be longer than `_min_frame`.
                self.drops.too_short += 1
                return
        if isinstance(frame, bytes):
            key = frame[FLOW_START:bth]
        else:
            key = bytes(frame[FLOW_START:bth])
        flow = self._known_flows.get(key)
        if flow is None:
            flow = self._flows.check(key)
            if flow is None:
                self.drops.not_mrc += 1
                return
        state = self.port_states[port]
        if not state.listens or state.address != flow.dst:
            self.drops.wrong_port += 1
            return
        view = _view(frame)
        if flow.trimmed:
            self.take_trimmed(port, view, flow)
            return
        size = flow.frame_length
        if length != size:
            if length < size or size < bth + MIN_LENGTH_AFTER_BTH:
                self.drops.bad_length += 1
                return
            view = view[:size]
        if crc32(view[bth:], flow.crc) != RESIDUE and not _odd_reserved_byte(view, flow):
            self.drops.bad_icrc += 1
            return
        self.take(port, view, flow)

    def take(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a frame that arrived at `self.now_ns`. Its ICRC and headers before the BTH are correct."""

    def take_trimmed(self, port: int, view: memoryview, flow: Flow) -> None:
        """Handle a trimmed frame, which has lost its payload. Its lengths and its ICRC are not correct."""

    def frames_to_send(
        self, now_ns: int, free_ports: Collection[int] | None = None, limit: int = 32
    ) -> list[Frame]:
        """Return the frames to send, each with its port; an empty list if there is nothing to send.

        The list ends after `limit` frames or slightly more. `free_ports` are the ports that can take a frame;
        None means all. Queue pairs take turns. Answers are sent before data.
        """
        self.now_ns = now_ns
        urgent, self.repairs_wait = self.repairs_wait, False
        out: list[Outgoing] = []
        if free_ports is not None:
            if not free_ports:
                return out
            if len(free_ports) >= len(self.ports):
                free_ports = None
        # Endpoint operations go first, but not twice in a row: a peer's many requests must not stop data.
        last = urgent or self._operations_last
        self._operations_last = not last and self.emit_operations(out, limit, free_ports)
        self.scheduler.emit(now_ns, out, limit, free_ports)
        if last:
            self.emit_operations(out, limit, free_ports)
        states = self.port_states
        for item in out:
            states[item[0]].sent += 1
        return out

    def set_port_state(self, port: int, up: bool, now_ns: int) -> None:
        """Record that a port went down or came up."""

    def emit_operations(self, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> bool:
        """Append frames of no queue pair until `out` has `limit` frames. Return True if some are left."""
        return False

    def next_timer(self) -> int | None:
        """Return the absolute time, ns, at which `handle_timer` must be called; None: no timer is set."""
        due = self.scheduler.next_timer(self.now_ns)
        other = self.operations_due_ns()
        if due is None or other is None:
            return other if due is None else due
        return min(due, other)

    def operations_due_ns(self) -> int | None:
        """Return when work is due that belongs to no queue pair; None: never."""
        return None

    def handle_timer(self, now_ns: int) -> None:
        """Handle the timers that have run out at `now_ns`."""
        self.now_ns = now_ns
        self.handle_operations(now_ns)
        for qp in self.scheduler.due(now_ns):
            qp.handle_timer(now_ns)
            self.scheduler.wake(now_ns, qp)

    def handle_operations(self, now_ns: int) -> None:
        """Do the due work that belongs to no queue pair."""


def _odd_reserved_byte(view: memoryview, flow: Flow) -> bool:
    """Return True if the ICRC is wrong only because of the BTH's reserved byte. The ICRC must ignore it."""
    bth = flow.bth
    if view[bth + _RESERVED_BYTE] == 0:
        return False
    copy = bytearray(view[bth:])
    copy[_RESERVED_BYTE] = 0
    return crc32(copy, flow.crc) == RESIDUE


def message_view(
    data: bytes | bytearray | memoryview,
    imm: int | None,
    least_bytes: int,
    most_bytes: int,
    remote_va: int,
    rkey: int,
) -> memoryview:
    """Return the bytes of a message to write. Raise ValueError if a value does not fit into a packet."""
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if not least_bytes <= len(view) <= most_bytes:
        raise ValueError(f"a message has {least_bytes} to {most_bytes} bytes, not {len(view)}")
    if imm is not None and not 0 <= imm <= 0xFFFFFFFF:
        raise ValueError(f"immediate data has 32 bits, not {imm}")
    if not 0 <= remote_va <= _ADDRESSES - len(view):
        raise ValueError(f"{len(view)} bytes at {remote_va:#x} do not fit into addresses of 64 bits")
    if not 0 <= rkey <= 0xFFFFFFFF:
        raise ValueError(f"a memory key has 32 bits, not {rkey:#x}")
    return view
