"""One direction of a link: the queue in front of it, the wire, and the faults of both.

A time represents the queue, as in `p4src/queue.p4`. A port stores the time at which it will have sent all
accepted frames (`_idle_ps`). So when a frame arrives, the port already computes the frame's departure. One
event for each hop is enough: the arrival at the far end. The time from now until `_idle_ps` is the depth of
the queue. The depth decides whether a frame is marked, trimmed or dropped.

Classes have strict priority. A frame of a higher class waits only for the frame that is being sent and for
earlier frames of its class. It delays each overtaken frame by its own sending time. The arrival of an
overtaken frame is scheduled already. If this event happens too early, it is scheduled again.

On live targets a token bucket limits the rate of a link (`Bucket`). The queues are then as deep as with a
wire, because the switch program counts the data that a wire would carry. But frames leave earlier.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64, mypyc_attr

from mrclab.simulator.clock import NEVER_PS, Clock, Event

DATA: Final = 0
CUT: Final = 1
"""Priority of frames whose payload was trimmed."""
CONTROL: Final = 2

BYTE_SHIFT: Final = 10
_PS_BYTE: Final = (8 * 10**12) << BYTE_SHIFT
"""Divided by a rate in bit/s, this is the time of a byte in 1/1024 ps."""


@dataclass(frozen=True, slots=True)
class Depths:
    """The depths at which a queue begins to mark, trim or drop frames. A depth is a waiting time in ps.

    The rules are the same as in `p4src/queue.p4` and `p4src/ecn.p4`. From `mark_from_ps` to `mark_from_ps` +
    `mark_span_ps`, the share of marked frames grows up to `mark_most`. Above this range, all frames are
    marked. Above `trim_from_ps`, frames that may be trimmed are trimmed. Above `drop_ps`, other frames are
    dropped. Trimmed frames get half of the link's rate. `cut_limit_ps` limits the queue of trimmed frames.
    """

    drop_ps: int = NEVER_PS
    trim_from_ps: int = NEVER_PS
    cut_limit_ps: int = NEVER_PS
    cut_dscp: int = 0
    mark_from_ps: int = NEVER_PS
    mark_span_ps: int = 0
    mark_most: float = 1.0


UNLIMITED: Final = Depths()


@dataclass(frozen=True, slots=True)
class Bucket:
    """The token bucket that limits a link's rate on live targets (`mrclab.controller.queues.shape_of`).

    The bucket may send up to `burst_bytes` more than a wire in the same time. So a frame on an idle link
    leaves at once, without waiting for its serialisation time. Hosts use sch_tbf: it has no classes and sends
    a frame when there are tokens for the whole frame. The queue of sch_tbf has `ahead_bytes`; the NIC counts
    frames in this queue as sent. Switches use sch_htb, which sends a frame if any token is left (`owes`).
    """

    burst_bytes: int
    ahead_bytes: int = 0
    owes: bool = False
    classes: bool = True


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A node at an end of a link."""

    def arrive(self, packet: Packet) -> None:
        """Process a packet that has just arrived over a link."""


class Hop:
    """One node's decision for all frames that have the same header."""

    __slots__ = ("after", "drop", "dst", "dst_mac", "hop_limit", "out", "shared", "src_mac", "valid", "ways")

    def __init__(self, dst: bytes, hop_limit: int, out: Port | None, drop: int, shared: bool) -> None:
        self.dst = dst
        """Outer destination after this hop."""
        self.hop_limit = hop_limit
        """Hop limit after this hop."""
        self.out = out
        """The port over which frames leave. None: frames are dropped, or `ways` has the choices."""
        self.drop = drop
        """The reason for a drop (mrclab.p4src.contract.Drop)."""
        self.shared = shared
        """True if the destination alone decides, so that all flows share this decision."""
        self.src_mac = b""
        self.dst_mac = b""
        self.after: Hop | None = None
        """The next node's decision for these frames, or None if it is not made yet."""
        self.valid = True
        """False if the routes have changed since this decision."""
        self.ways: tuple[Hop, ...] = ()
        """Decisions from which the switch chooses for each frame, if `out` is None. Empty: drop the frame."""


class Packet(Event):
    """A frame on its way through the network."""

    __slots__ = (
        "behind",
        "corrupt",
        "cut_dscp",
        "duration_ps",
        "frame",
        "hop",
        "inlet",
        "item",
        "leaves_ps",
        "markable",
        "marked",
        "port",
        "priority",
        "size_bytes",
        "stalled_ps",
        "trim_bytes",
        "waits",
    )

    def __init__(
        self, frame: bytes, size_bytes: int, hop: Hop, priority: int, trim_bytes: int, markable: bool
    ) -> None:
        """Create a packet from a frame. `trim_bytes` is its length after trimming, or 0 for no trimming."""
        super().__init__()
        self.frame = frame
        """The sender's frame. The fields that switches change are stored in other attributes."""
        self.item: object = None
        """The packet object, if packets are objects. The frame is then empty."""
        self.size_bytes: i64 = size_bytes
        """Length on the wire. After trimming it is less than the length of `frame`."""
        self.hop = hop
        self.priority: i64 = priority
        self.trim_bytes: i64 = trim_bytes
        self.markable = markable
        self.marked = False
        """True if a switch has set the congestion mark (CE)."""
        self.cut_dscp: i64 = -1
        """DSCP that a switch set when it trimmed the packet, or -1 if it is not trimmed."""
        self.corrupt: i64 = -1
        """The bit of the PSN that a faulty link has flipped, or -1."""
        self.port: Port | None = None
        """The port that sends the packet or has sent it last."""
        self.leaves_ps: i64 = 0
        """Time when the last bit leaves the port. While the packet `waits`, `late_ps` is not included."""
        self.waits = False
        """True for a data packet whose sending has not begun, as of the port's last check."""
        self.duration_ps: i64 = 0
        """The time for which the port sends this packet."""
        self.behind: Packet | None = None
        """The next data packet that leaves the port."""
        self.inlet: Node | None = None
        """On lossless links: the receiving end of the link over which the packet came last."""
        self.stalled_ps: i64 = 0
        """On lossless links: the packet's waiting time in its last port while its class was stopped."""

    def use_again(self, size_bytes: i64, hop: Hop, priority: i64, trim_bytes: i64, markable: bool) -> None:
        """Reuse this object for another packet. The old packet must have arrived and must not be corrupt."""
        self.size_bytes = size_bytes
        self.hop = hop
        self.priority = priority
        self.trim_bytes = trim_bytes
        self.markable = markable
        self.marked = False
        self.cut_dscp = -1
        self.waits = False
        self.inlet = None
        self.stalled_ps = 0

    def happen(self) -> None:
        """Deliver the packet to the far end of the link, or wait if other frames have overtaken it."""
        port = self.port
        assert port is not None
        if self.waits:
            port.begin_due()
            if self.waits:
                port.clock.at(port.gone_ps(self) + port.late_ps + port.delay_ps, self)
                return
        due = self.leaves_ps + port.delay_ps
        if port.early_ps:
            due = port.gone_ps(self) + port.delay_ps
        if due > self.at_ps:
            port.clock.at(due, self)
            return
        if self.priority == DATA or port.in_order:
            port.forget(self)
        if port.faulty and not port.survives(self):
            return
        peer = port.peer
        assert peer is not None
        peer.arrive(self)


class Port:
    """One direction of a link."""

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
        """Create the sending end of a link. `number` is the port's number at its node.

        `rng` decides which packets are marked or lost.
        """
        self.clock = clock
        self.name = name
        self.number = number
        self.rate_bps = rate_bps
        self.delay_ps: i64 = delay_ps
        """Delay of every frame on this link, mainly propagation."""
        self.peer: Node | None = None
        self.peer_port = 0
        """Number of the port at the far end."""
        self.peer_mac = b""
        self.mac = b""
        self._byte_time: i64 = _PS_BYTE // rate_bps
        self._depths = depths
        self._drop_ps: i64 = depths.drop_ps
        self._trim_from_ps: i64 = depths.trim_from_ps
        self._mark_from_ps: i64 = depths.mark_from_ps
        self._rng = rng
        self.early_ps: i64 = 0
        """Time by which a token bucket is ahead of a wire; 0 for a wire."""
        self._owes = False
        self._ahead_ps: i64 = 0
        """A NIC's port accepts the next frame this long before all earlier frames are sent."""
        self.in_order = False
        """True if classes have no effect."""
        self._begun_ps: i64 = 0
        """Time at which the latest data packet that the port has begun to send leaves the wire."""
        self._unbegun: Packet | None = None
        """The oldest data packet whose sending has not begun, as of the last check."""
        self.late_ps: i64 = 0
        """Time by which other classes have delayed data. A waiting packet's time does not include it."""
        self._idle_ps: i64 = 0
        """Time at which all accepted frames are sent."""
        self._cut_ps: i64 = 0
        """Time at which all trimmed and control frames are sent."""
        self._control_ps: i64 = 0
        """Time at which all control frames are sent."""
        self._cut_credit_ps: i64 = 0
        """Time at which all trimmed frames would be sent, at half of the link's rate."""
        self._first: Packet | None = None
        """The oldest data packet that has not arrived. `behind` links the later packets in order."""
        self._last: Packet | None = None
        self.longest_wait_ps: i64 = 0
        self.packets: i64 = 0
        self.bytes: i64 = 0
        self.marked = self.trimmed = self.dropped = self.lost = 0
        """`dropped` counts drops by the queue. `lost` counts losses by faults."""
        # Faults. `faulty` is true if there is any fault.
        self.faulty = False
        self.dead = False
        self._loss = 0.0
        self._corruption = 0.0
        self._slow_byte_time: i64 = 0
        self._slow_burst_ps: i64 = 0
        self._slow_until_ps: i64 = 0

    def keep_by(self, bucket: Bucket) -> None:
        """Limit the link's rate by a token bucket, which allows bursts. A wire allows no bursts."""
        self.early_ps = bucket.burst_bytes * self._byte_time >> BYTE_SHIFT
        self._ahead_ps = (bucket.burst_bytes + bucket.ahead_bytes) * self._byte_time >> BYTE_SHIFT
        self._owes = bucket.owes
        self.in_order = not bucket.classes

    def gone_ps(self, packet: Packet) -> i64:
        """Return the time from which the token bucket allows a packet to leave."""
        gone = packet.leaves_ps - self.early_ps
        return gone - packet.duration_ps if self._owes else gone

    def load_ps(self) -> i64:
        """Return the time at which all accepted frames are sent. For switches, later means more load."""
        return self._idle_ps

    def busy_until_ps(self) -> i64:
        """Return the time at which the port accepts the next frame.

        A wire accepts the next frame when all earlier frames are sent, a token bucket earlier.
        """
        return self._idle_ps - self._ahead_ps

    def put(self, packet: Packet) -> bool:
        """Accept a packet and schedule it by its class, or trim or drop it. Return False if it is dropped."""
        clock = self.clock
        now = clock.now_ps
        idle = self._idle_ps
        if idle <= now and packet.priority == DATA:
            duration = packet.size_bytes * self._byte_time >> BYTE_SHIFT
            self._send(packet, now, duration)
            return True
        wait: i64 = 0
        if idle > now:
            wait = idle - now
        if wait > self.longest_wait_ps:
            self.longest_wait_ps = wait
        if packet.priority == DATA:
            if wait > self._trim_from_ps and packet.trim_bytes:
                if not self._cut(packet, now):
                    self.dropped += 1
                    return False
            elif wait > self._drop_ps:
                self.dropped += 1
                return False
        if packet.markable and wait > self._mark_from_ps:
            self._mark(packet, wait)
        duration = packet.size_bytes * self._byte_time >> BYTE_SHIFT
        if packet.priority == DATA or self.in_order:
            self._send(packet, now + wait, duration)
        else:
            self._send_ahead(packet, now, duration)
        return True

    def _send(self, packet: Packet, begin_ps: i64, duration_ps: i64) -> None:
        """Send a data packet after all frames that were accepted before."""
        leaves = begin_ps + duration_ps
        self._idle_ps = leaves
        packet.port = self
        packet.leaves_ps = leaves
        packet.duration_ps = duration_ps
        self._go(packet)
        if begin_ps - self.early_ps > self.clock.now_ps:
            packet.waits = True
            packet.leaves_ps = leaves - self.late_ps
            if self._unbegun is None:
                self._unbegun = packet
        else:
            self.begin_due()
            self._begun_ps = leaves
        last = self._last
        if last is None:
            self._first = packet
        else:
            last.behind = packet
        self._last = packet

    def begin_due(self) -> None:
        """Set the final times of data packets whose sending has begun: nothing can delay them any more."""
        packet = self._unbegun
        if packet is None:
            return
        late, begun_by = self.late_ps, self.clock.now_ps + self.early_ps
        while packet is not None:
            leaves = packet.leaves_ps + late
            if leaves - packet.duration_ps > begun_by:
                break
            packet.leaves_ps = leaves
            packet.waits = False
            self._begun_ps = leaves
            packet = packet.behind
        self._unbegun = packet

    def _send_ahead(self, packet: Packet, now: i64, duration_ps: i64) -> None:
        """Send a packet of a higher class before all data whose sending has not begun."""
        self.begin_due()
        begin = self._begun_ps if self._begun_ps > now else now
        cut = self._cut_ps
        if packet.priority == CONTROL:
            if self._control_ps > begin:
                begin = self._control_ps
            leaves = begin + duration_ps
            self._control_ps = leaves
            self._cut_ps = (cut if cut > begin else begin) + duration_ps
        else:
            if cut > begin:
                begin = cut
            leaves = begin + duration_ps
            self._cut_ps = leaves
        self.late_ps += duration_ps
        self._idle_ps = (self._idle_ps if self._idle_ps > now else now) + duration_ps
        packet.port = self
        packet.leaves_ps = leaves
        packet.duration_ps = duration_ps
        self._go(packet)

    def _go(self, packet: Packet) -> None:
        """Count a packet, and schedule its arrival."""
        self.packets += 1
        self.bytes += packet.size_bytes
        gone = packet.leaves_ps
        if self.early_ps:
            gone = self.gone_ps(packet)
            if gone < self.clock.now_ps:
                gone = self.clock.now_ps
        self.clock.at(gone + self.delay_ps, packet)

    def _cut(self, packet: Packet, now: i64) -> bool:
        """Trim a packet. Return False if trimmed packets already use half of the link's rate."""
        credit = self._cut_credit_ps if self._cut_credit_ps > now else now
        if credit - now > self._depths.cut_limit_ps:
            return False
        packet.size_bytes = packet.trim_bytes
        packet.trim_bytes = 0
        packet.cut_dscp = self._depths.cut_dscp
        packet.priority = CUT
        self._cut_credit_ps = credit + (packet.size_bytes * self._byte_time >> (BYTE_SHIFT - 1))
        self.trimmed += 1
        return True

    def _mark(self, packet: Packet, wait_ps: i64) -> None:
        depths = self._depths
        beyond_ps = int(wait_ps) - depths.mark_from_ps
        drawn_ps = self._rng.random() * depths.mark_span_ps
        if drawn_ps < beyond_ps * depths.mark_most or beyond_ps >= depths.mark_span_ps:
            packet.marked = True
            self.marked += 1

    def forget(self, packet: Packet) -> None:
        """Remove an arrived data packet from the list of packets in flight."""
        if self._first is packet:
            self._first = packet.behind
            if self._first is None:
                self._last = None
        else:  # the delay was reduced, so the packet arrives before packets that left earlier
            before = self._first
            while before is not None and before.behind is not packet:
                before = before.behind
            if before is not None:
                before.behind = packet.behind
                if self._last is packet:
                    self._last = before
        packet.behind = None

    def set_dead(self, dead: bool) -> None:
        """Lose every packet from now on, or end this fault."""
        self.dead = dead
        self._note_faults()

    def set_loss(self, ratio: float) -> None:
        """Lose a share of the packets. A share of 0 ends this fault."""
        self._loss = ratio
        self._note_faults()

    def set_corruption(self, ratio: float) -> None:
        """Flip a bit in a share of the packets. A share of 0 ends this fault."""
        self._corruption = ratio
        self._note_faults()

    def set_slow(self, rate_bps: int, burst_ps: int = 0) -> None:
        """Drop frames beyond this rate, except for a burst. A rate of 0 ends this fault."""
        self._slow_byte_time = _PS_BYTE // rate_bps if rate_bps else 0
        self._slow_burst_ps = burst_ps
        self._slow_until_ps = 0
        self._note_faults()

    def _note_faults(self) -> None:
        self.faulty = self.dead or self._loss > 0 or self._corruption > 0 or self._slow_byte_time > 0

    def survives(self, packet: Packet) -> bool:
        """Apply the link's faults to a packet at its far end. Return False if the packet is lost."""
        if self.dead or (self._loss > 0 and self._rng.random() < self._loss):
            self.lost += 1
            return False
        if self._slow_byte_time:
            now = self.clock.now_ps
            busy = self._slow_until_ps if self._slow_until_ps > now else now
            if busy - now > self._slow_burst_ps:
                self.lost += 1
                return False
            self._slow_until_ps = busy + (packet.size_bytes * self._slow_byte_time >> BYTE_SHIFT)
        if self._corruption > 0 and self._rng.random() < self._corruption:
            packet.corrupt = int(self._rng.random() * 24)
        return True
