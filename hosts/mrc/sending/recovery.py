"""When does a packet count as lost? RTT, reordering window, loss detection and the timers of one queue pair.

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
* otherwise when the tail timer runs out while anything is unacknowledged: packets sent long enough before the
  probe are lost if the probe is answered first.

The answer, with its bitmap, decides about the packets sent before the probe. Only when probes stay unanswered
too does the ACK timer count down to the error.

All fields are written here alone; the requester reports events and reads the next step.
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.outstanding.scoreboard import Scoreboard, SendOrder, SentPacket
from mrclab.hosts.mrc.sending.reordering import ReorderingWindow
from mrclab.hosts.mrc.sending.timers import AckTimer, TailTimer
from mrclab.hosts.rdma.rtt import RttEstimator

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
