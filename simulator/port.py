"""One direction of a link: the queue in front of it, the wire, and the faults of both.

The queue is virtual time, as in `p4src/queue.p4`. A port keeps the time when it will have sent all accepted
frames (`_idle_ps`). So a frame's departure is certain on its arrival, and one event a hop suffices: the
arrival at the other end. The distance of that moment from now is the depth of the queue, by which frames are
marked, trimmed and dropped.

Classes are strict. A frame of a higher class waits for the frame that is being sent and for earlier frames of
the same class, and the frames that it overtakes leave later by as much. Overtaken frames have their arrival
scheduled already; at that event they turn out not to be due yet.

A link's rate may also be kept by a token bucket in place of a wire, as on live targets (`Bucket`). Queues are
then as deep as before, since the switch program counts the data that the link would carry, but frames leave
earlier.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from mypy_extensions import i64, mypyc_attr

from mrclab.simulator.clock import NEVER_PS, Clock, Event

DATA: Final = 0
CUT: Final = 1
"""Frames that lost their payload to trimming."""
CONTROL: Final = 2

BYTE_SHIFT: Final = 10
_PS_BYTE: Final = (8 * 10**12) << BYTE_SHIFT
"""Divided by a rate in bit/s: the time of a byte in 1/1024 ps."""


@dataclass(frozen=True, slots=True)
class Depths:
    """The treatment of a frame by the depth of the queue, as waiting time in ps.

    The meaning is that of `p4src/queue.p4` and `p4src/ecn.p4`: marks begin at `mark_from_ps` and are certain
    `mark_span_ps` later (0: no marks); in between their share grows to `mark_most`. `trim_from_ps` cuts
    payloads of frames that may be cut, `drop_ps` drops the others, and `cut_limit_ps` bounds how far cut
    frames go ahead of their half of the link.
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
    """The token bucket that keeps a link's rate on live targets (`mrclab.controller.queues.shape_of`).

    It has let `burst_bytes` go already of the data that a wire would still be sending, so a frame that comes
    onto an idle link does not take its serialisation time. The kernel's buckets differ: a host's (sch_tbf)
    lets a frame go once there are tokens for all of it, knows no classes, and `ahead_bytes` may wait in it,
    which the NIC counts as sent. A switch's (sch_htb) lets a frame go while there is any token left (`owes`).
    """

    burst_bytes: int
    ahead_bytes: int = 0
    owes: bool = False
    classes: bool = True


@mypyc_attr(allow_interpreted_subclasses=True)
class Node:
    """A node at an end of a link."""

    def arrive(self, packet: Packet) -> None:
        """Take in a packet that has come over a link, now."""


class Hop:
    """One node's decision for all frames that have the same header."""

    __slots__ = ("after", "drop", "dst", "dst_mac", "hop_limit", "out", "shared", "src_mac", "valid", "ways")

    def __init__(self, dst: bytes, hop_limit: int, out: Port | None, drop: int, shared: bool) -> None:
        self.dst = dst
        """Outer destination from here on."""
        self.hop_limit = hop_limit
        """Hop limit from here on."""
        self.out = out
        """The port where frames leave; None if they are dropped."""
        self.drop = drop
        """The reason (mrclab.p4src.contract.Drop), if they are dropped."""
        self.shared = shared
        """For frames of any flow: their destination alone decides."""
        self.src_mac = b""
        self.dst_mac = b""
        self.after: Hop | None = None
        """The next node's decision for them, once it is made."""
        self.valid = True
        """False: routes have changed since."""
        self.ways: tuple[Hop, ...] = ()
        """The decisions among which the switch chooses for each frame, if `out` is None; empty: it drops."""


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
        """Make a packet of a frame.

        `trim_bytes` is its length after trimming; 0 if it must not be trimmed.
        """
        super().__init__()
        self.frame = frame
        """As its sender made it; what switches change is in the other fields."""
        self.item: object = None
        """What crosses in place of a frame, where packets are objects; then the frame is empty."""
        self.size_bytes: i64 = size_bytes
        """Length on the wire; less than the frame's once it is trimmed."""
        self.hop = hop
        self.priority: i64 = priority
        self.trim_bytes: i64 = trim_bytes
        self.markable = markable
        self.marked = False
        """Congestion experienced."""
        self.cut_dscp: i64 = -1
        """DSCP that a switch wrote when it trimmed the packet; -1: whole."""
        self.corrupt: i64 = -1
        """A bit that a faulty link has flipped, of the PSN; -1: none."""
        self.port: Port | None = None
        """The port that sends it, or sent it last."""
        self.leaves_ps: i64 = 0
        """When its last bit leaves that port; while it `waits`, without the port's delay by other classes."""
        self.waits = False
        """A data packet that the port has not begun to send, as far as it has looked."""
        self.duration_ps: i64 = 0
        """How long the port sends it."""
        self.behind: Packet | None = None
        """The data packet that leaves the port after it."""
        self.inlet: Node | None = None
        """On lossless links: the receiving end of the link over which it came last."""
        self.stalled_ps: i64 = 0
        """On lossless links: how long it waited in its last port because the other end let nothing come."""

    def use_again(self, size_bytes: i64, hop: Hop, priority: i64, trim_bytes: i64, markable: bool) -> None:
        """Use this object, whose packet has arrived and is not corrupt, for another packet."""
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
        """Arrive at the other end of the link, unless something has overtaken it on the way."""
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
        """Make the sending end of a link.

        `number` is the port's at its node; `rng` draws marks and losses.
        """
        self.clock = clock
        self.name = name
        self.number = number
        self.rate_bps = rate_bps
        self.delay_ps: i64 = delay_ps
        """Propagation, and whatever else every frame meets on this link."""
        self.peer: Node | None = None
        self.peer_port = 0
        """Number of the port at the other end."""
        self.peer_mac = b""
        self.mac = b""
        self._byte_time: i64 = _PS_BYTE // rate_bps
        self._depths = depths
        self._drop_ps: i64 = depths.drop_ps
        self._trim_from_ps: i64 = depths.trim_from_ps
        self._mark_from_ps: i64 = depths.mark_from_ps
        self._rng = rng
        self.early_ps: i64 = 0
        """By how much a token bucket is ahead of a wire; 0: this is a wire."""
        self._owes = False
        self._ahead_ps: i64 = 0
        """Of a NIC's port: by how much it is free before it has sent all accepted frames."""
        self.in_order = False
        """Classes do not matter."""
        self._begun_ps: i64 = 0
        """When a wire will have sent the last data packet that it has begun."""
        self._unbegun: Packet | None = None
        """The oldest data packet that it has not begun, as far as it has looked."""
        self.late_ps: i64 = 0
        """By how much other classes have delayed data in all; a waiting packet's time lacks it."""
        self._idle_ps: i64 = 0
        """When all accepted frames have been sent."""
        self._cut_ps: i64 = 0
        """When cut and control frames have been sent."""
        self._control_ps: i64 = 0
        """When control frames have been sent."""
        self._cut_credit_ps: i64 = 0
        """When cut frames will have had their half of the link."""
        self._first: Packet | None = None
        """The oldest data packet that has not arrived yet; the others follow in order."""
        self._last: Packet | None = None
        self.longest_wait_ps: i64 = 0
        self.packets: i64 = 0
        self.bytes: i64 = 0
        self.marked = self.trimmed = self.dropped = self.lost = 0
        """`dropped` by the queue, `lost` to faults."""
        # Faults; `faulty` is true while there is any.
        self.faulty = False
        self.dead = False
        self._loss = 0.0
        self._corruption = 0.0
        self._slow_byte_time: i64 = 0
        self._slow_burst_ps: i64 = 0
        self._slow_until_ps: i64 = 0

    # The queue

    def keep_by(self, bucket: Bucket) -> None:
        """Keep the link's rate by a token bucket from now on, rather than as a wire does."""
        self.early_ps = bucket.burst_bytes * self._byte_time >> BYTE_SHIFT
        self._ahead_ps = (bucket.burst_bytes + bucket.ahead_bytes) * self._byte_time >> BYTE_SHIFT
        self._owes = bucket.owes
        self.in_order = not bucket.classes

    def gone_ps(self, packet: Packet) -> i64:
        """Return when the token bucket lets a packet go, if it is here by then."""
        gone = packet.leaves_ps - self.early_ps
        return gone - packet.duration_ps if self._owes else gone

    def load_ps(self) -> i64:
        """Return when all accepted frames will have been sent: the measure of ports' loads."""
        return self._idle_ps

    def busy_until_ps(self) -> i64:
        """Return when the port will take a frame: shortly before it has sent the accepted ones."""
        return self._idle_ps - self._ahead_ps

    def put(self, packet: Packet) -> bool:
        """Take in a packet: send it as soon as its class may, or trim or drop it. Return False if dropped."""
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
        """Send a data packet after all accepted before it."""
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
        """Fix the time of each data packet that the port has begun: no other class delays it any more."""
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
        """Send a packet of a higher class before all data that the port has not begun to send."""
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
        """Count a packet, and have it arrive."""
        self.packets += 1
        self.bytes += packet.size_bytes
        gone = packet.leaves_ps
        if self.early_ps:
            gone = self.gone_ps(packet)
            if gone < self.clock.now_ps:
                gone = self.clock.now_ps
        self.clock.at(gone + self.delay_ps, packet)

    def _cut(self, packet: Packet, now: i64) -> bool:
        """Cut a packet's payload off, if cut packets are within their half of the link."""
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
        """Remove an arrived data packet from the list of packets on their way."""
        if self._first is packet:
            self._first = packet.behind
            if self._first is None:
                self._last = None
        else:  # The link has become shorter: it arrives before others that left earlier.
            before = self._first
            while before is not None and before.behind is not packet:
                before = before.behind
            if before is not None:
                before.behind = packet.behind
                if self._last is packet:
                    self._last = before
        packet.behind = None

    # Faults

    def set_dead(self, dead: bool) -> None:
        """Lose everything from now on, or nothing more."""
        self.dead = dead
        self._note_faults()

    def set_loss(self, ratio: float) -> None:
        """Lose a share of the packets; 0 ends that."""
        self._loss = ratio
        self._note_faults()

    def set_corruption(self, ratio: float) -> None:
        """Flip a bit of a share of the packets; 0 ends that."""
        self._corruption = ratio
        self._note_faults()

    def set_slow(self, rate_bps: int, burst_ps: int = 0) -> None:
        """Drop the frames that a link of that rate would not carry, beyond a burst; 0 ends that."""
        self._slow_byte_time = _PS_BYTE // rate_bps if rate_bps else 0
        self._slow_burst_ps = burst_ps
        self._slow_until_ps = 0
        self._note_faults()

    def _note_faults(self) -> None:
        self.faulty = self.dead or self._loss > 0 or self._corruption > 0 or self._slow_byte_time > 0

    def survives(self, packet: Packet) -> bool:
        """Let the link's faults act on a packet at its far end; return False if it is lost."""
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
