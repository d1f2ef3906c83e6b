"""A port that serves its queue frame by frame: what lossless links are made of.

The other end of such a link has a buffer and says when nothing more fits. So nobody can know on arrival when
a frame will leave, as `mrclab.simulator.port` does; here frames wait in a queue of each class until the port
is free and the other end has room. `mrclab.simulator.flow_control` has the two
ways to say so.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Final

from mrclab.simulator.clock import NEVER_PS, Clock, Event
from mrclab.simulator.port import BYTE_SHIFT, CONTROL, CUT, DATA, Depths, Node, Packet, Port

CLASSES: Final = 3
"""Classes of traffic, each with a separate buffer at the far end of a lossless link."""


class Inlet(Node):
    """The receiving end of a lossless link: it counts bytes that came in and have not left the node yet."""

    def __init__(self, port: ServedPort, node: Node, capacity_bytes: int) -> None:
        """Stand between a link, whose sending end is `port`, and the `node` that it leads to."""
        self.port = port
        self.node = node
        self.capacity_bytes = capacity_bytes
        """Of the buffer of each class."""
        self.held_bytes = [0] * CLASSES
        self.most_bytes = 0
        """The most that was held of one class."""
        self.overflowed = 0
        """Frames dropped because the buffer was full: none, if headroom or credits are right."""
        self.onward: list[ServedPort] = []
        """The ports of the node through which frames leave it."""

    def arrive(self, packet: Packet) -> None:
        """Buffer a packet and pass it to the node; if the node does not send it on, it leaves the buffer."""
        size = packet.size_bytes
        priority = packet.priority
        held = self.held_bytes[priority] + size
        if held > self.capacity_bytes:
            self.overflowed += 1
            return
        self.held_bytes[priority] = held
        if held > self.most_bytes:
            self.most_bytes = held
        packet.inlet = self
        self.taken(priority)
        self.node.arrive(packet)
        if packet.port is self.port:
            self.release(priority, size)

    def release(self, priority: int, size_bytes: int) -> None:
        """Note that a packet has left the node."""
        self.held_bytes[priority] -= size_bytes
        self.left(priority, size_bytes)

    def taken(self, priority: int) -> None:
        """React to more in the buffer."""

    def left(self, priority: int, size_bytes: int) -> None:
        """React to less in the buffer."""

    def lost(self, packet: Packet) -> None:
        """React to a packet that the link has lost."""

    def refuse(self, refusing: bool) -> None:
        """Let no more data come, whatever room there is, or take it again: a faulty NIC does so."""

    def stops_below(self, priority: int) -> int:
        """Return how many links in a row have stopped behind this node, with frames of this link waiting."""
        deepest = 0
        for port in self.onward:
            if port.stopped[priority] and port.depth[priority] > deepest and port.holds(priority, self):
                deepest = port.depth[priority]
        return deepest


class Signal(Event):
    """The receiving end's signal about its buffer, on its way to the sending end of the link."""

    __slots__ = ("port", "priority", "value")

    def __init__(self, port: ServedPort, priority: int, value: int) -> None:
        """Tell `port`."""
        super().__init__()
        self.port = port
        self.priority = priority
        self.value = value

    def happen(self) -> None:
        """Arrive."""
        self.port.on_signal(self.priority, self.value)


class _Sent(Event):
    """The moment when the last bit of a packet, or of a signal, leaves a port."""

    __slots__ = ("_inlet", "_port", "_priority", "_size_bytes")

    def __init__(self, port: ServedPort, inlet: Inlet | None, priority: int, size_bytes: int) -> None:
        super().__init__()
        self._port = port
        self._inlet = inlet
        self._priority = priority
        self._size_bytes = size_bytes

    def happen(self) -> None:
        """Free the packet's place in the buffer that it came into, and go on."""
        inlet = self._inlet
        if inlet is not None:
            inlet.release(self._priority, self._size_bytes)
        self._port.serve()


class Stops:
    """How long ports of a network were stopped, all together, in bins of time."""

    def __init__(self, begin_ps: int, bin_ps: int) -> None:
        self.begin_ps = begin_ps
        self.bin_ps = bin_ps
        self.bins_ps: list[int] = []

    def add(self, begin_ps: int, end_ps: int) -> None:
        """Count a stop in the bins that it falls into."""
        begin = max(begin_ps - self.begin_ps, 0)
        end = end_ps - self.begin_ps
        bins, width = self.bins_ps, self.bin_ps
        while begin < end:
            number = begin // width
            while len(bins) <= number:
                bins.append(0)
            until = min((number + 1) * width, end)
            bins[number] += until - begin
            begin = until


class ServedPort(Port):
    """One direction of a lossless link: its queues, and the wire."""

    def __init__(
        self,
        clock: Clock,
        name: str,
        number: int,
        rate_bps: int,
        delay_ps: int,
        depths: Depths,
        rng: random.Random,
    ) -> None:
        """Make the sending end of a link, as `Port` does; only the marks of `depths` count."""
        super().__init__(clock, name, number, rate_bps, delay_ps, depths, rng)
        self.inlet: Inlet | None = None
        """The receiving end of this link."""
        self.signal_bytes = 0
        """Of a signal on the wire."""
        self.response_ps = 0
        """From the arrival of a signal until the sending end acts on it."""
        self.on_free: Callable[[int], None] | None = None
        """Called with the time when a port that held frames back will be free."""
        self.stops_seen: Stops | None = None
        self._queues: list[deque[Packet]] = [deque() for _ in range(CLASSES)]
        self._signals: deque[Signal] = deque()
        self._waiting = 0
        """How many frames wait."""
        self._waiting_bytes = 0
        self._busy_ps = 0
        """When the frame that is being sent has left."""
        self.stopped = [False] * CLASSES
        """Whether the other end lets nothing of a class come."""
        self.depth = [0] * CLASSES
        """Of a class that is stopped: how many links in a row are, counted from where the cause is."""
        self._stopped_at_ps = [0] * CLASSES
        self._stopped_ps = [0] * CLASSES
        self.stops = 0
        """How often it was stopped."""
        self.signals_sent = 0
        self.deepest = 0
        """The most links in a row that were stopped because of one cause, this one being the last."""
        self.most_waiting_bytes = 0
        self.blocked = 0
        """Packets that waited here for the other end, although the port behind it was free for them."""
        self.blocked_ps = 0
        """How long they did, added up."""

    # The queue

    def load_ps(self) -> int:
        """Return when all waiting frames would have been sent if nothing stopped the port."""
        waiting = self._waiting_bytes * self._byte_time >> BYTE_SHIFT
        return max(self._busy_ps, self.clock.now_ps) + waiting

    def busy_until_ps(self) -> int:
        """Return when the port is free; later than anything while frames wait, for nobody knows."""
        return NEVER_PS if self._waiting else self._busy_ps

    def put(self, packet: Packet) -> bool:
        """Take in a packet, always; send it as soon as its class may and the other end has room for it."""
        now = self.clock.now_ps
        priority = packet.priority
        wait = max(self._busy_ps - now, 0) + (self._waiting_bytes * self._byte_time >> BYTE_SHIFT)
        if wait > self.longest_wait_ps:
            self.longest_wait_ps = wait
        if packet.markable and wait > self._mark_from_ps:
            self._mark(packet, wait)
        before = packet.port
        if packet.stalled_ps and not wait and not self.stopped[priority]:
            assert isinstance(before, ServedPort)
            before.blocked += 1
            before.blocked_ps += packet.stalled_ps
        packet.port = self
        packet.stalled_ps = self.stopped_ps(priority)
        self._queues[priority].append(packet)
        self._waiting += 1
        self._waiting_bytes += packet.size_bytes
        if self._waiting_bytes > self.most_waiting_bytes:
            self.most_waiting_bytes = self._waiting_bytes
        if self._busy_ps <= now:
            self._next(now)
        return True

    def serve(self) -> None:
        """Send what may be sent next, if the port is free."""
        now = self.clock.now_ps
        if self._busy_ps > now:
            return
        held_back = self._waiting > 0
        self._next(now)
        if held_back and not self._waiting and self.on_free is not None:
            self.on_free(self._busy_ps)

    def _next(self, now: int) -> None:
        """Begin to send: a signal first, then by class the packets that the other end has room for."""
        if self._signals:
            signal = self._signals.popleft()
            leaves = self._busy_ps = now + (self.signal_bytes * self._byte_time >> BYTE_SHIFT)
            self.signals_sent += 1
            self.clock.at(leaves, _Sent(self, None, 0, 0))
            self.clock.at(leaves + self.delay_ps + self.response_ps, signal)
            return
        for priority in (CONTROL, CUT, DATA):
            queue = self._queues[priority]
            if queue and self.claim(priority, queue[0].size_bytes):
                self._begin(queue.popleft(), now)
                return

    def _begin(self, packet: Packet, now: int) -> None:
        priority, size = packet.priority, packet.size_bytes
        duration = size * self._byte_time >> BYTE_SHIFT
        leaves = self._busy_ps = now + duration
        packet.stalled_ps = self.stopped_ps(priority) - packet.stalled_ps
        packet.leaves_ps = leaves
        packet.duration_ps = duration
        self._waiting -= 1
        self._waiting_bytes -= size
        self.packets += 1
        self.bytes += size
        inlet = packet.inlet
        self.clock.at(leaves, _Sent(self, inlet if isinstance(inlet, Inlet) else None, priority, size))
        self.clock.at(leaves + self.delay_ps, packet)

    def holds(self, priority: int, inlet: Inlet) -> bool:
        """Return whether a frame of a class waits here that came in at `inlet`."""
        return any(packet.inlet is inlet for packet in self._queues[priority])

    def claim(self, priority: int, size_bytes: int) -> bool:
        """Return whether the other end lets a frame come now, and take the room for it."""
        return not self.stopped[priority]

    # Signals between the two ends

    def signal(self, port: ServedPort, priority: int, value: int) -> None:
        """Tell the sending end `port` of the link in the other direction something about the buffer here."""
        for waiting in self._signals:
            if waiting.priority == priority and self.supersedes(waiting.value, value):
                waiting.value = value
                return
        self._signals.append(Signal(port, priority, value))
        if self._busy_ps <= self.clock.now_ps:
            self._next(self.clock.now_ps)

    def supersedes(self, old: int, new: int) -> bool:
        """Return whether a signal that still waits may say this instead."""
        return False

    def on_signal(self, priority: int, value: int) -> None:
        """Act on the other end's signal."""

    def survives(self, packet: Packet) -> bool:
        """Let the link's faults act on a packet; tell the other end of one that is lost."""
        if super().survives(packet):
            return True
        if self.inlet is not None:
            self.inlet.lost(packet)
        return False

    # Stops

    def stop(self, priority: int) -> None:
        """Send nothing more of a class."""
        if self.stopped[priority]:
            return
        self.stopped[priority] = True
        self._stopped_at_ps[priority] = self.clock.now_ps
        self.stops += 1
        below = self.inlet.stops_below(priority) if self.inlet is not None else 0
        self.depth[priority] = below + 1
        self.deepest = max(self.deepest, below + 1)

    def go_on(self, priority: int) -> None:
        """End a stop."""
        if not self.stopped[priority]:
            return
        self.stopped[priority] = False
        begin, now = self._stopped_at_ps[priority], self.clock.now_ps
        self._stopped_ps[priority] += now - begin
        if self.stops_seen is not None and priority == DATA:
            self.stops_seen.add(begin, now)

    def stopped_since_ps(self, priority: int) -> int:
        """Return since when a class is stopped, or was stopped last."""
        return self._stopped_at_ps[priority]

    def count_anew(self, stops_seen: Stops | None) -> None:
        """Count stops, queues and blocked frames from now on; add the times of stops to `stops_seen`."""
        self.stops_seen = stops_seen
        self.stops = sum(self.stopped)
        self.deepest = max(depth if on else 0 for on, depth in zip(self.stopped, self.depth, strict=True))
        self.most_waiting_bytes = self._waiting_bytes
        self.blocked = self.blocked_ps = 0

    def stopped_ps(self, priority: int) -> int:
        """Return how long a class has been stopped in all, until now."""
        total = self._stopped_ps[priority]
        if self.stopped[priority]:
            total += self.clock.now_ps - self._stopped_at_ps[priority]
        return total
