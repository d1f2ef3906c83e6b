"""When does a packet count as lost? Loss detection, the reordering window, and timers.

The rule is RACK's [RFC 8985], adapted to spraying. A packet is lost when another one, SENT more than the
reordering window later, on whatever path, has been acknowledged:

    sent_ns(newest acknowledged) - sent_ns(packet) > reordering window

Both sides of that comparison are send times. A receiver or a machine that stalls delays all acknowledgements
alike and therefore declares nothing lost; only evidence that something later overtook the packet does.

Once a loss has retired an EV, the packets sent on it before are under suspicion: for them the window is 0, so
that all count as lost as soon as anything sent later is acknowledged.

The rule needs something sent later, and nothing is after the last packets of a burst. A probe supplies it:

* when a packet is overtaken by less than the window, and nothing sent since could decide: as soon as the
  window has passed since the packet left;
* otherwise when the tail timer runs out while anything is unacknowledged (1.5 * srtt after the last
  transmission, and more than the reordering window): packets sent long enough before the probe are lost if
  the probe is answered first.

The answer, with its bitmap, decides about the packets sent before the probe. Only when probes stay unanswered
too does the ACK timer of the specification count down to the error.

All fields of `Recovery` are written here alone; the requester reports events and reads the next step.
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.config import ENDLESS_RETRIES, MrcConfig
from mrclab.hosts.mrc.outstanding import Scoreboard, SendOrder, SentPacket
from mrclab.hosts.rdma.rtt import RttEstimator


class ReorderingWindow:
    """How much later something must have been sent, to prove by its acknowledgement that a packet is lost."""

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
    """A seen overtaking counts for at least the time of so many packets: on a slow link queues take as long
    to come and go."""
    _PACKET_TIMES = 6
    _SPAN = 6
    """The ceiling over the floor, if that comes from a slow link: 36 packets of 4 KiB fill a queue before it
    trims (16 frames of 9,000 bytes), and no packet is overtaken by more than that."""

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
        """Return the window at this time."""
        rtt = self._rtt
        if self.widening > 1 and now_ns - self._widened_ns > self._quiet_ns:
            self.widening //= 2
            self._widened_ns = now_ns
        floor_ns = rtt.floor_ns
        level_ns = rtt.srtt_ns if rtt.samples < self._COLD_SAMPLES else floor_ns
        # Comparisons rather than max() of four, which is slow once compiled: this runs for each SACK.
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
        """Return by how much a packet was recently overtaken and yet arrived, on the axis of send times."""
        passed = now_ns - self._period_ns
        if passed > self._memory_ns:
            self._before_ns = self._recent_ns if passed <= 2 * self._memory_ns else 0
            self._recent_ns = 0
            self._period_ns = now_ns
        return max(self._recent_ns, self._before_ns)

    def on_overtaken(self, now_ns: int, extent_ns: int) -> None:
        """Note that a packet arrived after one sent `extent_ns` later was acknowledged."""
        if extent_ns > self.seen_ns(now_ns):
            self._recent_ns = extent_ns

    def on_spurious(self, now_ns: int) -> None:
        """Widen the window: a packet that counted as lost had arrived."""
        self.widening = min(2 * self.widening, self._MAX_WIDENING)
        self._widened_ns = now_ns


class TailTimer:
    """When to send a probe because nothing was sent after the last packets."""

    __slots__ = ("_max_ns", "_rtt", "probes", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._max_ns = max(config.tail_probe_max_ns, 6 * config.packet_time_ns())
        self._rtt = rtt
        self.since_ns = 0
        """Last transmission, of data or of a tail probe."""
        self.probes = 0

    def due_ns(self, window_ns: int) -> int:
        """Return when the next probe is due; each unanswered one doubles the wait, which has a ceiling.

        That is never below the reordering window: a probe sent sooner could not prove a loss.
        """
        srtt_ns = self._rtt.srtt_ns
        wait = max(srtt_ns + (srtt_ns >> 1), window_ns + 1) << min(self.probes, 10)
        return self.since_ns + min(wait, max(self._max_ns, window_ns + 1))


class AckTimer:
    """The ACK timeout: 1.024 us * 2^n, some tries at that, then doubling [SPEC Table 7-1]."""

    __slots__ = ("_at_base", "_base_ns", "_exponential", "_linear", "_rtt", "_step", "retries", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        exponent, self._linear, self._exponential = config.ack_times()
        self._base_ns = 1024 << exponent
        self._at_base = config.reading.retransmission_timer_at_base
        self._rtt = rtt
        self.since_ns = 0
        """Last progress, or the moment something became outstanding."""
        self.retries = 0
        self._step = 0
        """Retries by the last retransmission that began at the base interval again."""

    def choose(self, exponent: int, linear: int, exponential: int) -> None:
        """Set the timeout, 1.024 us * 2^exponent, and how often it runs out before the queue pair fails."""
        self._base_ns, self._linear, self._exponential = 1024 << exponent, linear, exponential

    def timeout_ns(self) -> int:
        """Return the present timeout; never below four smoothed RTTs."""
        wait = self._base_ns << max(0, min(self.retries - self._step - self._linear + 1, 24))
        return max(wait, 4 * self._rtt.srtt_ns)

    def restart(self, now_ns: int) -> None:
        """Begin at the base interval with all retries left."""
        self.since_ns = now_ns
        self.retries = self._step = 0

    def on_retransmission(self, now_ns: int) -> None:
        """Begin at the base interval, if the option is set; the retries stay counted."""
        if self._at_base and self.retries > self._step:
            self.since_ns = now_ns
            self._step = self.retries

    def due_ns(self) -> int:
        """Return when the timer runs out."""
        return self.since_ns + self.timeout_ns()

    @property
    def exhausted(self) -> bool:
        """All retries are used up."""
        if self._exponential >= ENDLESS_RETRIES:
            return False
        return self.retries > self._linear + self._exponential


NOTHING: Final = 0
TAIL_PROBE: Final = 1
ACK_TIMEOUT: Final = 2
"""What `handle_timer` asks for."""


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
        """The oldest packet in flight was overtaken by less than the reordering window."""
        self.progress_ns = -1
        """When something was acknowledged last."""
        self._heard_ns = -1
        """When the last valid frame of the peer came in."""
        self.order = SendOrder(board, config.mpr)
        """All transmissions; the requester adds them."""
        self._retired_ns = -1
        """When an EV was retired last, while anything sent before is in flight."""
        self.newest_acked_ns = -1
        """Latest send time of an acknowledged packet; -1 for none."""
        self._lead_ns = 0
        """How much faster than data the last tail probe was."""
        self.longest = self._short = 0
        """Bytes of the longest packet so far; of packets that say nothing about its RTT."""
        self._late_ready = False
        self._gap_due_ns = 0
        """When to look at the gap again; 0 for never."""

    # What happens

    def on_frame(self, now_ns: int) -> None:
        """Note that a valid frame of the peer came in, of any kind."""
        self._heard_ns = now_ns

    def on_burst(self, now_ns: int, *, idle_before: bool) -> None:
        """Note that data was sent, `idle_before` if nothing was in flight then: restart the timers."""
        self.tail.since_ns = now_ns
        if idle_before:
            self.ack_timer.restart(now_ns)
            self.tail.probes = 0

    def on_longer(self, length: int) -> None:
        """Take in that a packet longer than all before goes out. If it is much longer, RTTs count anew."""
        if length > 2 * self.longest:
            self.rtt.restart()
        self.longest = length
        self._short = length >> 1

    def on_rtt(self, length: int, rtt_ns: int) -> None:
        """Take in the RTT of a packet; that of a short one is less on each link, and none of full packets."""
        if length >= self._short:
            self.rtt.sample(rtt_ns)

    def on_tail_probe(self, now_ns: int) -> None:
        """Note that a tail probe went out."""
        self.tail.since_ns = now_ns

    def on_probe_answer(self, rtt_ns: int, sent_ns: int, *, tail: bool) -> None:
        """Take in the answer to a probe.

        Health probes bypass queues, so overtaking by one proves no loss; a tail probe counts as a packet. But
        it is short, and each link on its way takes less time for it than for a full packet: it counts as a
        packet sent earlier, by the time that it was faster than data. For the same reason its RTT is none of
        data: with it, the reordering window would follow the shortest packets.
        """
        if not tail:
            return
        self._lead_ns = max(0, self.rtt.floor_ns - rtt_ns)
        sent_ns -= self._lead_ns
        if sent_ns > self.newest_acked_ns:
            self.newest_acked_ns = sent_ns

    def on_acked(self, now_ns: int, acked: list[SentPacket], known_ns: int) -> None:
        """Take in packets that a SACK newly acknowledged.

        `known_ns` is the value of `newest_acked_ns` before the SACK: packets reported in a probe's answer had
        arrived before the probe, which therefore did not overtake it.
        """
        newest = self.newest_acked_ns
        late = known_ns
        min_rtt_ns = self.rtt.min_ns
        short = self._short
        for packet in acked:
            # A repeated packet's answer may be the first transmission's: count it only after a whole RTT [RFC
            # 8985].
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
        """Take in that a packet which counted as lost was acknowledged."""
        self.window.on_overtaken(now_ns, known_ns - packet.sent_ns)

    def on_spurious(self, now_ns: int) -> None:
        """Widen the reordering window: a packet that counted as lost had arrived."""
        self.window.on_spurious(now_ns)

    def on_progress(self, now_ns: int) -> None:
        """Restart the timers: something new was acknowledged."""
        self.progress_ns = now_ns
        self.ack_timer.restart(now_ns)
        self.tail.probes = 0
        self._late_ready = False

    def on_transport_ack(self, now_ns: int) -> None:
        """Restart the timers: something new is in the peer's memory."""
        self.ack_timer.restart(now_ns)
        self.tail.probes = 0

    def on_nack(self, now_ns: int) -> None:
        """Restart the ACK timer: a packet reached the peer, which is a sign of life."""
        self.ack_timer.since_ns = now_ns

    def on_refused(self, tries: int) -> bool:
        """Count a refusal of a packet sent so many times before; return whether all retries are used up.

        There is one counter for all causes; the NACKs of one window count as one try.
        """
        self.ack_timer.retries = max(self.ack_timer.retries, tries + 1)
        return self.ack_timer.exhausted

    # What is lost

    def detect(self, now_ns: int) -> list[SentPacket]:
        """Take out the packets sent more than the reordering window before the newest acknowledged one."""
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
        """Note that an EV was retired for a loss."""
        self._retired_ns = now_ns
        self.order.rescan()

    def detect_retired(self) -> list[SentPacket]:
        """Take out the packets that any later one overtook and that were sent on an EV retired since.

        Packets sent there later, because no other EV is usable, have the usual reordering window.
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
        """Return the packets lost when the ACK timer runs out: nothing if the peer is silent.

        A silent peer proves nothing against a path; a packet of the peer that arrived since the sending does.
        """
        known = self._heard_ns - self.rtt.srtt_ns - self.window.ns(now_ns)
        return [packet for packet in self._board.in_flight() if packet.sent_ns < known]

    def newest_in_flight(self) -> SentPacket | None:
        """Return the packet in flight that was sent last."""
        return self.order.newest()

    def wants_gap_probe(self, now_ns: int) -> bool:
        """Return whether to ask now about a packet that was overtaken, because nothing under way can decide.

        If an answer could not decide yet, the timer asks for it as soon as it can.
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
        """Return when `handle_timer` wants to be called while something is unacknowledged."""
        first = min(self.tail.due_ns(self.window.ns(now_ns) + self._lead_ns), self.ack_timer.due_ns())
        if self._gap_due_ns and self._gap_due_ns < first:
            first = self._gap_due_ns
        return first

    def handle_timer(self, now_ns: int) -> int:
        """Do the work that is due while something is unacknowledged; return the requester's next step."""
        if self._gap_due_ns and now_ns >= self._gap_due_ns:
            self._gap_due_ns = 0
            self.gap = True
        tail_due = self.tail.due_ns(self.window.ns(now_ns) + self._lead_ns)
        ack_due = self.ack_timer.due_ns()
        if now_ns < tail_due and now_ns < ack_due:
            return NOTHING
        if now_ns - min(tail_due, ack_due) > self._stall_grace_ns and not self._late_ready:
            # This process was not running. The peer's answers in that time are still unread: give it one
            # round. Only due work is put off, and only by that round: a machine that is always late must
            # run out of retries as well.
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
        """Drop everything in flight, as a QP in error does."""
        self.order.clear()
        self._retired_ns = -1
        self.gap = False
        self._gap_due_ns = 0
