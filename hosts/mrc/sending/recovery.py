"""When does a packet count as lost? Loss detection, the reordering window, and timers.

The rule is RACK's [RFC 8985], adapted to spraying. A packet is compared with the acknowledged packets of all
paths. If an acknowledged packet was SENT later by more than the reordering window, the packet is lost:

    sent_ns(newest acknowledged) - sent_ns(packet) > reordering window

The rule compares send times. So if a receiver or a machine stalls, and all acknowledgements are late, no
packet counts as lost. Only a later packet that overtook a packet proves a loss.

If a loss retires an EV, the reordering window is 0 for packets that were sent on this EV before it was
retired. These packets all count as lost as soon as any later packet is acknowledged.

The rule needs a later packet, but no packet follows the last packets of a burst. So probes are sent:

* If a packet was overtaken by less than the window, and no packet was sent late enough to prove its loss, the
  probe is sent when the window has passed since the overtaken packet was sent.
* Otherwise, if a packet is unacknowledged, the probe is sent when the tail timer runs out. This timer runs
  for 1.5 * srtt after the last transmission, or for the reordering window if the window is longer.

The bitmap in the answer shows which packets sent before the probe are lost. If probes remain unanswered, too,
the queue pair fails after the retries of the specification's ACK timer.

Only this module writes the fields of `Recovery`. The requester reports events and reads the next step.
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.config import ENDLESS_RETRIES, MrcConfig
from mrclab.hosts.mrc.outstanding import Scoreboard, SendOrder, SentPacket
from mrclab.hosts.rdma.rtt import RttEstimator


class ReorderingWindow:
    """The reordering window, a time.

    If a packet is acknowledged, packets that were sent earlier by more than this time count as lost.
    """

    __slots__ = (
        "_before_ns",
        "_max_ns",
        "_memory_ns",
        "_min_ns",
        "_period_ns",
        "_queueing_factor",
        "_quiet_ns",
        "_recent_ns",
        "_rtt",
        "_rtt_fraction",
        "_seen_factor",
        "_widened_ns",
        "widening",
    )

    _MAX_WIDENING = 16
    _COLD_SAMPLES = 256
    _MEMORY_PACKETS = 512
    """On a slow link, queues fill and empty slowly. So an overtaking counts as recent for at least the time
    in which the link sends this many packets."""
    _PACKET_TIMES = 6
    _SPAN = 6
    """On slow links, the largest window is this many times the smallest: 6 * 6 packet times. 36 packets of
    4 KiB fill a queue (16 frames of 9,000 bytes), and more packets cannot overtake a packet."""

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._rtt = rtt
        self._rtt_fraction = config.reorder_rtt_fraction
        self._queueing_factor = config.reorder_queueing_factor
        self._seen_factor = config.reorder_seen_factor
        slow_ns = self._PACKET_TIMES * config.packet_time_ns()
        self._min_ns = max(config.min_reorder_ns, slow_ns)
        self._max_ns = max(config.max_reorder_ns, self._SPAN * slow_ns)
        self._memory_ns = max(config.reorder_memory_ns, self._MEMORY_PACKETS * config.packet_time_ns())
        self._quiet_ns = config.reorder_quiet_ns
        self.widening = 1
        self._widened_ns = 0
        self._recent_ns = self._before_ns = 0
        self._period_ns = 0

    def ns(self, now_ns: int) -> int:
        """Return the reordering window at this time, ns."""
        rtt = self._rtt
        if self.widening > 1 and now_ns - self._widened_ns > self._quiet_ns:
            self.widening //= 2
            self._widened_ns = now_ns
        floor_ns = rtt.floor_ns
        level_ns = rtt.srtt_ns if rtt.samples < self._COLD_SAMPLES else floor_ns
        # Use comparisons: max() of four numbers is slow in compiled code, and this code runs per SACK.
        window = self._min_ns
        least = int(floor_ns * self._rtt_fraction)
        if least > window:
            window = least
        least = int((level_ns - rtt.min_ns) * self._queueing_factor)
        if least > window:
            window = least
        least = int(self.seen_ns(now_ns) * self._seen_factor)
        if least > window:
            window = least
        window *= self.widening
        return window if window < self._max_ns else self._max_ns

    def seen_ns(self, now_ns: int) -> int:
        """Return the longest time, ns, by which an arrived packet was recently overtaken.

        This time is the difference of the send times of the two packets.
        """
        passed = now_ns - self._period_ns
        if passed > self._memory_ns:
            self._before_ns = self._recent_ns if passed <= 2 * self._memory_ns else 0
            self._recent_ns = 0
            self._period_ns = now_ns
        return max(self._recent_ns, self._before_ns)

    def on_overtaken(self, now_ns: int, extent_ns: int) -> None:
        """Record that a packet was overtaken: a packet sent `extent_ns` later was acknowledged earlier."""
        if extent_ns > self.seen_ns(now_ns):
            self._recent_ns = extent_ns

    def on_spurious(self, now_ns: int) -> None:
        """Widen the window, because a packet that counted as lost had arrived."""
        self.widening = min(2 * self.widening, self._MAX_WIDENING)
        self._widened_ns = now_ns


class TailTimer:
    """The timer of tail probes. It runs out if no data was sent for some time."""

    __slots__ = ("_max_ns", "_rtt", "probes", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._max_ns = max(config.tail_probe_max_ns, 6 * config.packet_time_ns())
        self._rtt = rtt
        self.since_ns = 0
        """Time of the last transmission, of data or of a tail probe."""
        self.probes = 0

    def due_ns(self, window_ns: int) -> int:
        """Return when the next probe is due. Each unanswered probe doubles the wait, up to a limit.

        The wait is longer than the reordering window, because a probe sent sooner could not prove a loss.
        """
        srtt_ns = self._rtt.srtt_ns
        wait = max(srtt_ns + (srtt_ns >> 1), window_ns + 1) << min(self.probes, 10)
        return self.since_ns + min(wait, max(self._max_ns, window_ns + 1))


class AckTimer:
    """The ACK timer: 1.024 us * 2^n. After some retries, each further retry doubles it [SPEC Table 7-1]."""

    __slots__ = ("_at_base", "_base_ns", "_exponential", "_linear", "_rtt", "_step", "retries", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        exponent, self._linear, self._exponential = config.ack_times()
        self._base_ns = 1024 << exponent
        self._at_base = config.reading.retransmission_timer_at_base
        self._rtt = rtt
        self.since_ns = 0
        """Time of the last new acknowledgement, or of sending the first packet in flight."""
        self.retries = 0
        self._step = 0
        """Value of `retries` when a retransmission last set the timeout back to the base interval."""

    def choose(self, exponent: int, linear: int, exponential: int) -> None:
        """Set the timeout, 1.024 us * 2^exponent, and the retries until the queue pair fails."""
        self._base_ns, self._linear, self._exponential = 1024 << exponent, linear, exponential

    def timeout_ns(self) -> int:
        """Return the present timeout, ns; at least four smoothed RTTs."""
        wait = self._base_ns << max(0, min(self.retries - self._step - self._linear + 1, 24))
        return max(wait, 4 * self._rtt.srtt_ns)

    def restart(self, now_ns: int) -> None:
        """Restart the timer with the base interval and all retries left."""
        self.since_ns = now_ns
        self.retries = self._step = 0

    def on_retransmission(self, now_ns: int) -> None:
        """With `retransmission_timer_at_base`, restart the timer with the base interval. Keep `retries`."""
        if self._at_base and self.retries > self._step:
            self.since_ns = now_ns
            self._step = self.retries

    def due_ns(self) -> int:
        """Return when the timer runs out."""
        return self.since_ns + self.timeout_ns()

    @property
    def exhausted(self) -> bool:
        """True if all retries are used up."""
        if self._exponential >= ENDLESS_RETRIES:
            return False
        return self.retries > self._linear + self._exponential


NOTHING: Final = 0
TAIL_PROBE: Final = 1
ACK_TIMEOUT: Final = 2
"""The results of `handle_timer`: the next action of the requester."""


class Recovery:
    """Loss detection of one queue pair."""

    def __init__(self, config: MrcConfig, board: Scoreboard) -> None:
        self._board = board
        self._stall_grace_ns = config.stall_grace_ns
        self.rtt = RttEstimator(config.initial_rtt_ns)
        self.window = ReorderingWindow(config, self.rtt)
        self.tail = TailTimer(config, self.rtt)
        self.ack_timer = AckTimer(config, self.rtt)
        self.gap = False
        """True: the oldest packet in flight was overtaken, but by less than the reordering window."""
        self.progress_ns = -1
        """Time at which a packet was last acknowledged."""
        self._heard_ns = -1
        """Time at which the last valid frame of the peer arrived."""
        self.order = SendOrder(board, config.mpr)
        """All transmissions, in the order of sending; the requester adds them."""
        self._retired_ns = -1
        """Time at which an EV was last retired, if packets sent before this time are in flight; else -1."""
        self.newest_acked_ns = -1
        """Latest send time of an acknowledged packet; -1: none."""
        self._lead_ns = 0
        """Time by which the last tail probe was faster than a data packet, ns."""
        self.longest = self._short = 0
        """Length of the longest packet so far; packets shorter than `_short` give no RTT sample."""
        self._late_ready = False
        self._gap_due_ns = 0
        """When to check for a gap again; 0: never."""

    # Events

    def on_frame(self, now_ns: int) -> None:
        """Record that a valid frame of any kind arrived from the peer."""
        self._heard_ns = now_ns

    def on_burst(self, now_ns: int, *, idle_before: bool) -> None:
        """Record that data was sent; restart the timers. If `idle_before`, nothing was in flight before."""
        self.tail.since_ns = now_ns
        if idle_before:
            self.ack_timer.restart(now_ns)
            self.tail.probes = 0

    def on_longer(self, length: int) -> None:
        """Record the length of a packet that is longer than all earlier packets.

        If the packet is more than twice as long as the longest earlier packet, discard all RTTs.
        """
        if length > 2 * self.longest:
            self.rtt.restart()
        self.longest = length
        self._short = length >> 1

    def on_rtt(self, length: int, rtt_ns: int) -> None:
        """Record the RTT of a packet. The RTT of a short packet is too small, and is ignored."""
        if length >= self._short:
            self.rtt.sample(rtt_ns)

    def on_tail_probe(self, now_ns: int) -> None:
        """Record that a tail probe was sent."""
        self.tail.since_ns = now_ns

    def on_probe_answer(self, rtt_ns: int, sent_ns: int, *, tail: bool) -> None:
        """Handle the answer to a probe.

        A health probe bypasses queues, so it proves no loss if it overtakes a packet. A tail probe proves a
        loss as a data packet does. Its send time is corrected, because a probe is short and has a shorter RTT
        than a full packet. This RTT is no RTT sample: it would make the reordering window too small.
        """
        if not tail:
            return
        self._lead_ns = max(0, self.rtt.floor_ns - rtt_ns)
        sent_ns -= self._lead_ns
        if sent_ns > self.newest_acked_ns:
            self.newest_acked_ns = sent_ns

    def on_acked(self, now_ns: int, acked: list[SentPacket], known_ns: int) -> None:
        """Handle packets that a SACK newly acknowledged.

        `known_ns` is the value of `newest_acked_ns` before the SACK. Packets sent before `known_ns` were
        overtaken. A probe that the SACK answers does not count: the packets `acked` arrived before the probe.
        """
        newest = self.newest_acked_ns
        late = known_ns
        min_rtt_ns = self.rtt.min_ns
        short = self._short
        for packet in acked:
            # After a retransmission, the acknowledgement may be of the first transmission. So it counts for
            # the retransmission only if the retransmission is at least one RTT old [RFC 8985].
            sent_ns = packet.sent_ns
            if packet.length < short:
                sent_ns -= self._lead_ns
            if sent_ns > newest and (packet.tries == 0 or now_ns - sent_ns >= min_rtt_ns):
                newest = sent_ns
            elif sent_ns < late:
                late = sent_ns
        self.newest_acked_ns = newest
        if late < known_ns:
            self.window.on_overtaken(now_ns, known_ns - late)

    def on_found(self, now_ns: int, packet: SentPacket, known_ns: int) -> None:
        """Record that a packet was acknowledged although it counted as lost."""
        self.window.on_overtaken(now_ns, known_ns - packet.sent_ns)

    def on_spurious(self, now_ns: int) -> None:
        """Widen the reordering window, because a packet that counted as lost had arrived."""
        self.window.on_spurious(now_ns)

    def on_progress(self, now_ns: int) -> None:
        """Restart the timers, because a packet was newly acknowledged."""
        self.progress_ns = now_ns
        self.ack_timer.restart(now_ns)
        self.tail.probes = 0
        self._late_ready = False

    def on_transport_ack(self, now_ns: int) -> None:
        """Restart the timers, because more data is in the peer's memory."""
        self.ack_timer.restart(now_ns)
        self.tail.probes = 0

    def on_nack(self, now_ns: int) -> None:
        """Restart the ACK timer, because the peer received a packet and answered."""
        self.ack_timer.since_ns = now_ns

    def on_refused(self, tries: int) -> bool:
        """Count a refusal of a packet that was sent `tries` times before; return whether no retry is left.

        Refusals and timeouts share one counter of retries. The NACKs of one window count as one retry.
        """
        self.ack_timer.retries = max(self.ack_timer.retries, tries + 1)
        return self.ack_timer.exhausted

    # Lost packets

    def detect(self, now_ns: int) -> list[SentPacket]:
        """Remove and return the packets that are lost according to the reordering window."""
        lost: list[SentPacket] = []
        order = self.order
        packet = order.oldest()
        newest = self.newest_acked_ns
        if packet is not None:
            cut = newest - self.window.ns(now_ns)
            while packet is not None and packet.sent_ns < cut:
                lost.append(packet)
                order.drop_oldest()
                packet = order.oldest()
        self.gap = packet is not None and packet.sent_ns < newest
        return lost

    def on_retired(self, now_ns: int) -> None:
        """Record that an EV was retired because of a loss."""
        self._retired_ns = now_ns
        self.order.rescan()

    def detect_retired(self) -> list[SentPacket]:
        """Remove and return the packets that were overtaken and whose EV was retired after they were sent.

        If no EV is usable, packets are sent on retired EVs. This method does not return such packets:
        they count as lost only after the reordering window.
        """
        if self._retired_ns < 0:
            return []
        lost = self.order.take_retired(min(self.newest_acked_ns, self._retired_ns))
        oldest = self.order.oldest()
        if oldest is None or oldest.sent_ns >= self._retired_ns:
            self._retired_ns = -1
        self.gap = oldest is not None and oldest.sent_ns < self.newest_acked_ns
        return lost

    def timed_out(self, now_ns: int) -> list[SentPacket]:
        """Return the packets that are lost when the ACK timer runs out.

        A packet is lost if it was sent long before the peer's last frame arrived. If the peer is silent, no
        packet counts as lost.
        """
        known = self._heard_ns - self.rtt.srtt_ns - self.window.ns(now_ns)
        return [packet for packet in self._board.in_flight() if packet.sent_ns < known]

    def newest_in_flight(self) -> SentPacket | None:
        """Return the packet in flight that was sent last; None if there is none."""
        return self.order.newest()

    def wants_gap_probe(self, now_ns: int) -> bool:
        """Return True if a probe must be sent now to find out whether an overtaken packet is lost.

        If it is too early for the probe, set a timer.
        """
        self.gap = False
        self._gap_due_ns = 0
        oldest = self.order.oldest()
        if oldest is not None:
            decides = oldest.sent_ns + self.window.ns(now_ns) + self._lead_ns
            if oldest.sent_ns < self.newest_acked_ns and self.tail.since_ns <= decides:
                if decides < now_ns:
                    return True
                self._gap_due_ns = decides + 1
        return False

    # Timers

    def next_timer(self, now_ns: int) -> int:
        """Return when to call `handle_timer`. Call this only while a packet is unacknowledged."""
        first = min(self.tail.due_ns(self.window.ns(now_ns) + self._lead_ns), self.ack_timer.due_ns())
        if self._gap_due_ns and self._gap_due_ns < first:
            first = self._gap_due_ns
        return first

    def handle_timer(self, now_ns: int) -> int:
        """Do the work that is due. Return NOTHING, TAIL_PROBE or ACK_TIMEOUT: the requester's next action."""
        if self._gap_due_ns and now_ns >= self._gap_due_ns:
            self._gap_due_ns = 0
            self.gap = True
        tail_due = self.tail.due_ns(self.window.ns(now_ns) + self._lead_ns)
        ack_due = self.ack_timer.due_ns()
        if now_ns < tail_due and now_ns < ack_due:
            return NOTHING
        if now_ns - min(tail_due, ack_due) > self._stall_grace_ns and not self._late_ready:
            # The process did not run in time, so answers of the peer may still be unread. Postpone the due
            # work once, so that they can be read. On a machine that is always late, retries still run out.
            self._late_ready = True
            self.tail.since_ns = now_ns
            if now_ns >= ack_due:
                self.ack_timer.since_ns += now_ns - ack_due + self._stall_grace_ns
            return NOTHING
        self._late_ready = False
        if now_ns >= ack_due:
            self.ack_timer.retries += 1
            self.ack_timer.since_ns = self.tail.since_ns = now_ns
            return ACK_TIMEOUT
        self.tail.probes += 1
        self.tail.since_ns = now_ns
        return TAIL_PROBE

    def clear(self) -> None:
        """Remove everything in flight: the QP is in error."""
        self.order.clear()
        self._retired_ns = -1
        self.gap = False
        self._gap_due_ns = 0
