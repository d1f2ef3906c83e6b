"""A port of a lossless link, which serves its queue frame by frame.

The far end of such a link has a buffer and reports when the buffer is full. So the time at which a frame
leaves is not known when it arrives, unlike in `mrclab.simulator.port`. Here frames wait in a queue for each
class until the port is free and the far end has room. `mrclab.simulator.flow_control` has the two kinds of
report: pauses and credits.
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
    """The receiving end of a lossless link. It counts the bytes that the node still holds."""

    def __init__(self, port: ServedPort, node: Node, capacity_bytes: int) -> None:
        """Create the receiving end of the link whose sending end is `port`. The link leads to `node`."""
        self.port = port
        self.node = node
        self.capacity_bytes = capacity_bytes
        """Size of the buffer of each class."""
        self.held_bytes = [0] * CLASSES
        self.most_bytes = 0
        """The largest number of bytes of one class that were in the buffer."""
        self.overflowed = 0
        """Frames dropped because the buffer was full. The number is 0 if headroom or credits are correct."""
        self.onward: list[ServedPort] = []
        """The ports through which frames leave the node."""

    def arrive(self, packet: Packet) -> None:
        """Buffer a packet and pass it to the node. If the packet is not forwarded, free the buffer."""
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
        """Free the buffer of a packet that has left the node."""
        self.held_bytes[priority] -= size_bytes
        self.left(priority, size_bytes)

    def taken(self, priority: int) -> None:
        """Handle an increase of the bytes of a class in this buffer."""

    def left(self, priority: int, size_bytes: int) -> None:
        """Handle a decrease of the bytes of a class in this buffer."""

    def lost(self, packet: Packet) -> None:
        """Handle a packet that was lost on the link."""

    def refuse(self, refusing: bool) -> None:
        """Refuse all data, even if there is room, like a faulty NIC; or accept it again."""

    def stops_below(self, priority: int) -> int:
        """Return the length of the longest chain of stopped links that holds back frames from this link."""
        deepest = 0
        for port in self.onward:
            if port.stopped[priority] and port.depth[priority] > deepest and port.holds(priority, self):
                deepest = port.depth[priority]
        return deepest


class Signal(Event):
    """A signal about the receiver's buffer, on its way to the sending end of the link."""

    __slots__ = ("port", "priority", "value")

    def __init__(self, port: ServedPort, priority: int, value: int) -> None:
        """Create a signal to `port` for a class. `value` is a pause, a resume or a new limit of credits."""
        super().__init__()
        self.port = port
        self.priority = priority
        self.value = value

    def happen(self) -> None:
        """Deliver this signal to the port."""
        self.port.on_signal(self.priority, self.value)


class _Sent(Event):
    """The event at the time when the last bit of a packet, or of a signal, leaves a port."""

    __slots__ = ("_inlet", "_port", "_priority", "_size_bytes")

    def __init__(self, port: ServedPort, inlet: Inlet | None, priority: int, size_bytes: int) -> None:
        super().__init__()
        self._port = port
        self._inlet = inlet
        self._priority = priority
        self._size_bytes = size_bytes

    def happen(self) -> None:
        """Free the packet's place in the buffer that it has left, and send the next packet."""
        inlet = self._inlet
        if inlet is not None:
            inlet.release(self._priority, self._size_bytes)
        self._port.serve()


class Stops:
    """The total time for which ports of a network were stopped, in bins of time."""

    def __init__(self, begin_ps: int, bin_ps: int) -> None:
        self.begin_ps = begin_ps
        self.bin_ps = bin_ps
        self.bins_ps: list[int] = []

    def add(self, begin_ps: int, end_ps: int) -> None:
        """Add a port's stopped interval to each bin that the interval overlaps."""
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
        """Create the sending end of a link, as `Port` does.

        Of `depths`, only the thresholds for marks are used.
        """
        super().__init__(clock, name, number, rate_bps, delay_ps, depths, rng)
        self.inlet: Inlet | None = None
        """The receiving end of this link."""
        self.signal_bytes = 0
        """Length of a signal on the wire."""
        self.response_ps = 0
        """Time from the arrival of a signal until the sending end acts on it."""
        self.on_free: Callable[[int], None] | None = None
        """A function to call when the queue becomes empty. Its argument is the time when the port is free."""
        self.stops_seen: Stops | None = None
        self._queues: list[deque[Packet]] = [deque() for _ in range(CLASSES)]
        self._signals: deque[Signal] = deque()
        self._waiting = 0
        """Number of waiting frames."""
        self._waiting_bytes = 0
        self._busy_ps = 0
        """The time at which the present frame has been sent."""
        self.stopped = [False] * CLASSES
        """For each class, whether the far end has stopped this class."""
        self.depth = [0] * CLASSES
        """For each stopped class, the length of the chain of stopped links, counted from the cause."""
        self._stopped_at_ps = [0] * CLASSES
        self._stopped_ps = [0] * CLASSES
        self.stops = 0
        """Number of times that the port was stopped."""
        self.signals_sent = 0
        self.deepest = 0
        """The length of the longest chain of stopped links, counted from the cause to this link."""
        self.most_waiting_bytes = 0
        self.blocked = 0
        """Packets that waited here for the far end although their next port, behind the far end, was free."""
        self.blocked_ps = 0
        """Total waiting time of these blocked packets."""

    def load_ps(self) -> int:
        """Return the time at which all waiting frames would be sent if the port were never stopped."""
        waiting = self._waiting_bytes * self._byte_time >> BYTE_SHIFT
        return max(self._busy_ps, self.clock.now_ps) + waiting

    def busy_until_ps(self) -> int:
        """Return the time at which the port is free. While frames wait, return NEVER_PS (unknown)."""
        return NEVER_PS if self._waiting else self._busy_ps

    def put(self, packet: Packet) -> bool:
        """Queue a packet until its class has its turn and the far end has room. Return True."""
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
        """Send the next signal or packet if the port is free."""
        now = self.clock.now_ps
        if self._busy_ps > now:
            return
        held_back = self._waiting > 0
        self._next(now)
        if held_back and not self._waiting and self.on_free is not None:
            self.on_free(self._busy_ps)

    def _next(self, now: int) -> None:
        """Begin to send the next frame.

        Signals (pauses or credits) come first, then the highest class for which the far end has room.
        """
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
        """Return True if a frame of this class that arrived at `inlet` waits here."""
        return any(packet.inlet is inlet for packet in self._queues[priority])

    def claim(self, priority: int, size_bytes: int) -> bool:
        """Return True if the far end has room for a frame now, and reserve this room."""
        return not self.stopped[priority]

    def signal(self, port: ServedPort, priority: int, value: int) -> None:
        """Send the far end a signal about the buffer here. `port` is the far end's port of this link."""
        for waiting in self._signals:
            if waiting.priority == priority and self.supersedes(waiting.value, value):
                waiting.value = value
                return
        self._signals.append(Signal(port, priority, value))
        if self._busy_ps <= self.clock.now_ps:
            self._next(self.clock.now_ps)

    def supersedes(self, old: int, new: int) -> bool:
        """Return True if a new signal may replace a signal that still waits."""
        return False

    def on_signal(self, priority: int, value: int) -> None:
        """Act on a signal of the far end."""

    def survives(self, packet: Packet) -> bool:
        """Return whether a packet survives the link's faults. Report a lost packet to the receiving end."""
        if super().survives(packet):
            return True
        if self.inlet is not None:
            self.inlet.lost(packet)
        return False

    def stop(self, priority: int) -> None:
        """Stop sending frames of a class."""
        if self.stopped[priority]:
            return
        self.stopped[priority] = True
        self._stopped_at_ps[priority] = self.clock.now_ps
        self.stops += 1
        below = self.inlet.stops_below(priority) if self.inlet is not None else 0
        self.depth[priority] = below + 1
        self.deepest = max(self.deepest, below + 1)

    def go_on(self, priority: int) -> None:
        """End the stop of a class, so that its frames may be sent."""
        if not self.stopped[priority]:
            return
        self.stopped[priority] = False
        begin, now = self._stopped_at_ps[priority], self.clock.now_ps
        self._stopped_ps[priority] += now - begin
        if self.stops_seen is not None and priority == DATA:
            self.stops_seen.add(begin, now)

    def stopped_since_ps(self, priority: int) -> int:
        """Return when the class was last stopped."""
        return self._stopped_at_ps[priority]

    def count_anew(self, stops_seen: Stops | None) -> None:
        """Reset the counters of stops, queues and blocked frames. Record further stops in `stops_seen`."""
        self.stops_seen = stops_seen
        self.stops = sum(self.stopped)
        self.deepest = max(depth if on else 0 for on, depth in zip(self.stopped, self.depth, strict=True))
        self.most_waiting_bytes = self._waiting_bytes
        self.blocked = self.blocked_ps = 0

    def stopped_ps(self, priority: int) -> int:
        """Return the total time for which a class has been stopped until now."""
        total = self._stopped_ps[priority]
        if self.stopped[priority]:
            total += self.clock.now_ps - self._stopped_at_ps[priority]
        return total
