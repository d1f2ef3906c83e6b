"""The sending half of a queue pair: it splits writes into packets, sprays and retransmits them, and completes
the writes in order.

For each packet, the requester takes an EV from the rotation, builds a frame and writes a record on the
scoreboard. The code of these steps is optimised. An acknowledgement costs one look-up per PSN that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from mrclab.hosts.mrc.codec import PacketBuilder
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.congestion import CongestionControl, FixedWindow, WindowReport
from mrclab.hosts.mrc.connection import Connection
from mrclab.hosts.mrc.evs.ev import Ev, EvInput
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.outstanding import Scoreboard, SendQueue, SentPacket
from mrclab.hosts.mrc.packets import SackPacket
from mrclab.hosts.mrc.sending.answers import is_ack, nak_status, rtt_of, rtt_of_nack
from mrclab.hosts.mrc.sending.losses import Losses, Probes
from mrclab.hosts.mrc.sending.recovery import ACK_TIMEOUT, TAIL_PROBE, Recovery
from mrclab.hosts.mrc.wire import BTH_RETRANSMISSION, RCVD_UNIT_BYTES, EvMark, Nack, NackReason
from mrclab.hosts.rdma.events import (
    Event,
    EvState,
    LossReason,
    Note,
    QpError,
    Retransmitted,
    SendCompleted,
    Status,
)
from mrclab.hosts.rdma.frames import BTH_ACK_REQUEST, PSN_BITS, PSN_MASK, Outgoing, expand, traffic_class

_MARK_SKIP: Final = int(EvMark.SKIP_ONCE)
_MARK_ALWAYS: Final = int(EvMark.ALWAYS_SKIP)
_UNKNOWN: Final = EvState.UNKNOWN
_ACK_BIT: Final = BTH_ACK_REQUEST << 24
_RTX_BIT: Final = BTH_RETRANSMISSION << 24


class Requester:
    """The sending half of one QP."""

    __slots__ = (
        *("_builder", "_dynamic_mpr", "_emit", "in_memory", "most_mpr", "mpr", "_mtu", "_note"),
        *("_overhead", "_rcvd_units", "_remote_qpn", "_report", "_service_time", "_tc_data", "_tc_probe"),
        *("_tc_retx", "_timestamps", "_transport_ack", "board", "bogus_received", "bytes_acked"),
        *("congestion", "error", "evs", "losses", "nacks_received", "packets_retransmitted"),
        *("packets_sent", "probes", "qpn", "queue", "recovery", "sacks_received"),
    )

    def __init__(
        self,
        qpn: int,
        first_psn: int,
        config: MrcConfig,
        builder: PacketBuilder,
        emit: Callable[[Event], None],
        note: Note,
    ) -> None:
        self.qpn = qpn
        self._builder = builder
        self._emit, self._note = emit, note
        self.congestion: CongestionControl = FixedWindow(config.cwnd_bytes)
        self._overhead = 0
        self._timestamps = config.timestamps
        self._service_time = False
        self._report = WindowReport(qpn, config.window_event_interval_ns, note)
        self._rcvd_units = 0
        # PSNs start above 2^24. Otherwise `expand` could return a negative number for an old PSN.
        self.board = Scoreboard(first_psn + (1 << PSN_BITS), config.mpr)
        self.recovery = Recovery(config, self.board)
        self.losses = Losses(qpn, self.board, self.recovery, note)
        dscp = config.dscp
        self._tc_data = traffic_class(dscp.trimmable if config.trim else dscp.no_trim, ecn_capable=True)
        self._tc_retx = traffic_class(dscp.trimmable_retx if config.trim else dscp.no_trim, ecn_capable=True)
        self._tc_probe = traffic_class(dscp.no_trim, ecn_capable=True)
        self.probes = Probes(qpn, builder, self._tc_probe, self.recovery, note)
        self.queue = SendQueue(config.max_wimm)
        self.error: Status | None = None
        # connect() sets these fields.
        self.evs: EvSet
        self._remote_qpn = 0
        self._mtu = config.mtu_bytes
        self.mpr = self.most_mpr = config.mpr
        """Largest number of PSNs that may wait for an acknowledgement: now, and at any time."""
        self._dynamic_mpr = self._transport_ack = False
        self.in_memory = self.board.una
        """All PSNs below this one are in the peer's memory, according to transport ACKs."""

        self.packets_sent = self.packets_retransmitted = 0
        self.bytes_acked = self.sacks_received = self.nacks_received = self.bogus_received = 0

    def connect(self, connection: Connection, evs: EvSet, congestion: CongestionControl) -> None:
        """Set the settings of the connection, the EVs to the peer and the congestion control."""
        self.congestion = congestion
        self._overhead = congestion.overhead_bytes
        self.queue.max_imms = connection.max_wimm
        self._dynamic_mpr = connection.dynamic_mpr
        self._transport_ack = connection.transport_ack
        self._service_time = connection.service_time and self._timestamps
        self._remote_qpn = connection.remote_qpn
        self._mtu = connection.mtu_bytes
        self.mpr = self.most_mpr = connection.mpr
        self.evs = evs
        self.losses.connect(evs, congestion)
        self.probes.connect(connection.remote_qpn, evs, service_time=connection.service_time)
        if not connection.trim_nack:
            # The peer does not answer trimmed packets, so send data that switches do not trim.
            self._tc_data = self._tc_retx = self._tc_probe

    def post(self, now_ns: int, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None) -> None:
        """Queue a write; `data` must stay unchanged until the request completes."""
        if self.error is not None:
            self._emit(SendCompleted(now_ns, self.qpn, wr_id, Status.FLUSHED, len(data)))
            return
        self.queue.post(wr_id, data, va, rkey, imm)

    @property
    def idle(self) -> bool:
        """True if all posted writes are complete."""
        return not self.queue.open

    def hear(self, now_ns: int) -> None:
        """Record that a valid frame of any kind arrived from the peer."""
        self.recovery.on_frame(now_ns)

    # Sending

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` might append a frame now."""
        return self.wants_to_probe() or (self.has_data() and self.congestion.budget_bytes(now_ns) > 0)

    def wants_to_probe(self) -> bool:
        """Return whether `emit_probes` might append a probe now."""
        return self.recovery.gap or bool(self.probes.wanted)

    def has_data(self) -> bool:
        """Return whether a packet waits to be sent, even if congestion control does not allow it now."""
        board = self.board
        if self.losses.silent:
            return False
        lost = board.oldest_lost() if board.lost else None
        if lost is not None and lost.psn - board.una < self.mpr:
            return True
        first = self.queue.first
        if first is None or board.next_psn - board.una >= self.mpr:
            return False
        return self.queue.may_begin(first)

    def _unanswered(self) -> bool:
        """Return whether the sender waits for an answer of the peer."""
        board = self.board
        if board.inflight_packets or (board.una < board.next_psn and board.una not in board.lost):
            # Even if no packet is in flight, the peer may lack a PSN that does not wait for retransmission.
            # This happens only if an earlier SACK acknowledged packets falsely.
            return True
        requests = self.queue.open
        return self._transport_ack and bool(requests) and 0 <= requests[0].last_psn < self.board.una

    def emit_probes(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` probes to `out`; return their number. No window limits probes."""
        self.evs.now_ns = now_ns
        return self.probes.emit(now_ns, out, limit, free_ports) if self.wants_to_probe() else 0

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames: probes, lost packets, then new packets. Return their number."""
        start = len(out)
        evs = self.evs
        self.emit_probes(now_ns, out, limit, free_ports)
        if self.losses.silent:
            return len(out) - start
        board = self.board
        overhead = self._overhead
        granted = budget = self.congestion.budget_bytes(now_ns)
        idle_before = board.inflight_packets == 0 and not board.lost
        sent_any = False
        queue = self.queue
        has_path = True
        while board.lost and len(out) - start < limit and budget > 0:
            lost = board.oldest_lost()
            if lost is None or lost.psn - board.una >= self.mpr:  # The peer has made its window smaller.
                break
            ev = evs.pick(free_ports, lost.ev)
            if ev is None:
                has_path = False
                break
            board.take_lost(lost)
            self._retransmit(now_ns, lost, ev, out)
            budget -= lost.length + overhead
            sent_any = True
        mtu = self._mtu
        room = limit - (len(out) - start)
        while has_path and room > 0 and budget > 0 and board.next_psn - board.una < self.mpr:
            request = queue.first
            if request is None:
                break
            ev = evs.pick(free_ports)
            if ev is None:
                break
            offset = request.offset
            if not offset:
                if not queue.may_begin(request):
                    break
                queue.begin(request)
            length = request.length - offset
            psn = board.next_psn
            flags = 0
            if length > mtu:
                length = mtu
            else:
                flags = _ACK_BIT
                request.last_psn = psn
                queue.end_first()
            if length > self.recovery.longest:
                self.recovery.on_longer(length)
            request.offset = offset + length
            packet = SentPacket(psn, now_ns, ev, request, offset, length, 0, None)
            budget -= length + overhead
            if psn + 1 - board.una >= self.mpr or (
                budget <= 0 and self.congestion.pause_ns(granted - budget) >= self.recovery.rtt.srtt_ns
            ):
                # This packet uses up the MPR or the congestion window. No other packet can follow for some
                # time, so request an ACK.
                flags = _ACK_BIT
            self._send(now_ns, packet, flags, self._tc_data, out)
            room -= 1
            sent_any = True
        if sent_any:
            self.congestion.on_sent(now_ns, granted - budget)
            self.recovery.on_burst(now_ns, idle_before=idle_before)
        return len(out) - start

    def _send(self, now_ns: int, packet: SentPacket, flags: int, tclass: int, out: list[Outgoing]) -> None:
        ev = packet.ev
        self.board.on_sent(packet)
        self.recovery.order.add(packet)
        out.append((ev.port, self._builder.data(now_ns, packet, self._remote_qpn, flags, tclass)))
        ev.sent += 1
        self.packets_sent += 1

    def _retransmit(self, now_ns: int, lost: SentPacket, ev: Ev, out: list[Outgoing]) -> None:
        psn, old = lost.psn, lost.ev
        lost.previous = None  # Keep only the last two transmissions, to limit memory.
        packet = SentPacket(psn, now_ns, ev, lost.request, lost.offset, lost.length, lost.tries + 1, lost)
        self.recovery.ack_timer.on_retransmission(now_ns)
        self._send(now_ns, packet, _RTX_BIT | _ACK_BIT, self._tc_retx, out)
        self.packets_retransmitted += 1
        self._note(Retransmitted, (now_ns, self.qpn, psn & PSN_MASK, old.value, ev.value))

    # Arriving packets

    def on_sack(self, now_ns: int, sack: SackPacket) -> None:
        """Handle a SACK."""
        if self.error is not None:
            return
        board, recovery, evs = self.board, self.recovery, self.evs
        cack = expand(sack.cack_psn, board.una - 1)
        if cack >= board.next_psn or cack < board.una - 1 - (1 << 22):
            self.bogus_received += 1
            return
        self.sacks_received += 1
        if self.losses.silent:
            self.losses.set_silent(False)
        if sack.mpr and self._dynamic_mpr:
            self.mpr = min(128 * sack.mpr, self.most_mpr)
        mark = sack.mark
        # The mark comes before a probe's answer, which may restore the EV: see `skip_after_marked_probe`.
        evs.on_sack(now_ns, sack.entropy, mark)
        reason = LossReason.GAP
        known_ns = recovery.newest_acked_ns
        asked_ns = -1
        rtt_ns: int | None
        if sack.probe_reply:
            probe_id, stamp = sack.ack_psn_offset & 0xFFFF, sack.tx_timestamp
            rtt_ns, asked_ns = self.probes.on_answer(now_ns, probe_id, mark == _MARK_SKIP, stamp)
            reason = LossReason.PROBE
            length = 0
        else:
            trigger = board.current(cack + sack.ack_psn_offset)
            rtt_ns = self._on_trigger(now_ns, sack, trigger)
            length = 0 if trigger is None else trigger.length
        before, inflight = board.una, board.inflight_bytes
        acked, found = board.apply_sack(cack, cack + sack.sack_offset, sack.bitmap)
        for packet in found:
            recovery.on_found(now_ns, packet, known_ns)
            self.losses.on_spurious(now_ns, packet)
        for packet in acked:
            ev = packet.ev
            ev.acked += 1
            if ev.state is _UNKNOWN:
                evs.on_acked(ev)
        recovery.on_acked(now_ns, acked, known_ns)
        acked_bytes = inflight - board.inflight_bytes
        advanced = board.una != before
        if acked or found or advanced:
            recovery.on_progress(now_ns)
            self.bytes_acked += acked_bytes
        if advanced:
            self._complete(now_ns)
        elif asked_ns > recovery.progress_ns and board.contradicts(cack):
            # This SACK answers a probe that was sent after the last new acknowledgement. The SACK lacks
            # packets that the peer had acknowledged, so the earlier acknowledgement was false.
            self.fail(now_ns, Status.REMOTE_OPERATION_ERROR, "the peer lacks what was acknowledged", cack + 1)
            return
        congestion = self.congestion
        fresh = sack.rcvd_units - self._rcvd_units & 0xFFFFFF
        if fresh < 1 << 23:
            self._rcvd_units = sack.rcvd_units
            if congestion.reads_rcvd_bytes:
                congestion.on_arrived(fresh * RCVD_UNIT_BYTES)
            if sack.penalty != congestion.penalty or sack.restore_cwnd != congestion.restore:
                congestion.on_receiver(now_ns, sack.penalty, sack.restore_cwnd)
        if rtt_ns is not None and congestion.byte_ns:
            measured_ns: int = rtt_ns  # In compiled code, a sum with an `int | None` would be slow.
            rtt_ns = measured_ns + int((self._mtu - length) * congestion.byte_ns)
        ecn = mark == _MARK_SKIP or mark == _MARK_ALWAYS  # A CE mark causes one of these marks.
        congestion.on_ack(now_ns, acked_bytes + self._overhead * len(acked), rtt_ns, ecn)
        lost = recovery.detect(now_ns)
        if lost:
            self.losses.infer(now_ns, lost, reason)
        lost = recovery.detect_retired()
        if lost:
            self.losses.infer(now_ns, lost, LossReason.RETIRED)
        self._note_window(now_ns)

    def _note_window(self, now_ns: int) -> None:
        if self.congestion.cwnd_bytes != self._report.cwnd_bytes:
            self._report.note(now_ns, self.congestion)

    def _on_trigger(self, now_ns: int, sack: SackPacket, trigger: SentPacket | None) -> int | None:
        """Handle the packet that a SACK answers; return its RTT, or None if it is ambiguous."""
        if trigger is None:
            return None
        entropy = sack.entropy
        previous = trigger.previous
        if trigger.ev.value == entropy:
            self.evs.prove(now_ns, trigger.ev)
        elif previous is not None:
            # The SACK has the EV of an earlier transmission, which therefore arrived, but late.
            self.losses.on_spurious(now_ns, previous)
        rtt_ns = rtt_of(now_ns, trigger, sack, timestamps=self._timestamps, service_time=self._service_time)
        if rtt_ns is not None:
            self.recovery.on_rtt(trigger.length, rtt_ns)
        return rtt_ns

    def on_transport_ack(self, now_ns: int, psn24: int, syndrome: int) -> None:
        """Handle an AETH: the peer has all PSNs up to this one in memory, or the write of this PSN failed."""
        psn = expand(psn24, self.board.una - 1)
        status = nak_status(syndrome)
        if status is not None:
            self._on_transport_nak(now_ns, psn, status)
        elif is_ack(syndrome) and self._transport_ack and self.error is None and psn < self.board.next_psn:
            if psn >= self.in_memory:
                self.losses.set_silent(False)
                self.in_memory = psn + 1
                self.recovery.on_transport_ack(now_ns)
                self._complete(now_ns)
        else:
            self.bogus_received += 1

    def _on_transport_nak(self, now_ns: int, psn: int, status: Status) -> None:
        """Handle a NAK. It names the PSN that the peer expects, so all lower PSNs arrived [IBTA 9.7.5.2]."""
        board = self.board
        if self.error is not None or not board.una <= psn <= board.next_psn:
            self.bogus_received += 1
            return
        self.losses.set_silent(False)
        acked, _ = board.apply_sack(psn - 1, psn, 0)
        self.congestion.on_withdrawn(sum(packet.length + self._overhead for packet in acked))
        self.in_memory = max(self.in_memory, psn)
        self._complete(now_ns)
        self.fail(now_ns, status, "the peer answered with a NAK", psn)

    def _complete(self, now_ns: int) -> None:
        for request in self.queue.complete(self.in_memory if self._transport_ack else self.board.una):
            self._emit(SendCompleted(now_ns, self.qpn, request.wr_id, Status.SUCCESS, request.length))

    def on_nack(self, now_ns: int, nack: Nack) -> None:
        """Handle a NACK [SPEC §7.3]."""
        if self.error is not None:
            return
        board = self.board
        reason = nack.reason
        psn = expand(nack.nack_psn, board.una)
        self.nacks_received += 1
        if reason == NackReason.UNEXP_EVENT:
            if board.una <= psn < board.next_psn:
                self.fail(now_ns, Status.REMOTE_OPERATION_ERROR, "the peer refused a write", psn)
            else:
                self.bogus_received += 1
            return
        packet = board.current(psn)
        if packet is None or packet.ev.value != nack.entropy:
            # The packet is acknowledged or already sent again, so the NACK is too late.
            return
        self.losses.set_silent(False)
        last_hop = reason == NackReason.TRIMMED_LASTHOP
        trimmed = last_hop or reason == NackReason.TRIMMED
        rtt_ns = rtt_of_nack(now_ns, packet, nack, timestamps=self._timestamps)
        if rtt_ns is not None:
            lacking = self._mtu if trimmed else self._mtu - packet.length
            self.congestion.on_nack_rtt(rtt_ns + int(lacking * self.congestion.byte_ns))
        if trimmed:
            event = EvInput.TRIMMED_LASTHOP if last_hop else EvInput.TRIMMED
            self.evs.on_congestion(now_ns, packet.ev, event)
            self.congestion.on_trim(now_ns, packet.length + self._overhead, last_hop)
            self.losses.lose(now_ns, packet, LossReason.TRIMMED_LASTHOP if last_hop else LossReason.TRIMMED)
        else:
            if self.recovery.on_refused(packet.tries):
                self.fail(now_ns, Status.RETRY_EXCEEDED, f"NACK reason {reason:#04x}", psn)
                return
            self.congestion.on_withdrawn(packet.length + self._overhead)
            self.losses.lose(now_ns, packet, LossReason.NACK)
        self.recovery.on_nack(now_ns)

    # Timers

    def next_timer(self, now_ns: int) -> int | None:
        """Return when to call `handle_timer`; None: never."""
        if self.error is not None:
            return None
        due = self.evs.next_probe_ns() if self.evs.bad else None
        if self._unanswered():
            first = self.recovery.next_timer(now_ns)
            due = first if due is None else min(due, first)
        if self.has_data():
            send = self.congestion.next_send_ns(now_ns)
            if send is not None and (due is None or send < due):
                due = send
        return due

    def handle_timer(self, now_ns: int) -> None:
        """Do the work that is due."""
        if self.error is not None:
            return
        self.probes.want_due(now_ns)
        if not self._unanswered():
            return
        wanted = self.recovery.handle_timer(now_ns)
        if wanted == TAIL_PROBE:
            self.probes.want_tail(1)
        elif wanted == ACK_TIMEOUT:
            self._on_ack_timeout(now_ns)

    def _on_ack_timeout(self, now_ns: int) -> None:
        if self.recovery.ack_timer.exhausted:
            awaited = min(self.in_memory, self.board.una)  # lowest PSN whose SACK or transport ACK is missing
            self.fail(now_ns, Status.RETRY_EXCEEDED, "no acknowledgement", awaited)
            return
        if self.losses.on_ack_timeout(now_ns):
            self._note_window(now_ns)
        # Probe each plane, because a plane may be dead. The first answer shows which packets were lost.
        self.probes.want_tail(len(self.evs.planes))

    # Errors that end the queue pair

    def fail(self, now_ns: int, status: Status, detail: str, psn: int | None) -> None:
        """Go to the error state. The request of `psn` gets `status`, all other requests get FLUSHED."""
        if self.error is None:
            self.flush(now_ns, status, psn)
            self._emit(QpError(now_ns, self.qpn, status, detail))

    def flush(self, now_ns: int, status: Status, psn: int | None = None) -> None:
        """Complete all requests in order, without a QpError.

        The request of `psn` gets `status`, all other requests get FLUSHED.
        """
        if self.error is not None:
            return
        self.error = status
        blamed = self.queue.holder(psn)
        for request in self.queue.clear():
            outcome = status if request is blamed else Status.FLUSHED
            self._emit(SendCompleted(now_ns, self.qpn, request.wr_id, outcome, request.length))
        self.recovery.clear()
        self.probes.clear()
        self.withdraw()
        self.board.clear()

    def withdraw(self) -> None:
        """Remove this QP's packets in flight from the window, which other QPs may share."""
        self.losses.set_silent(True)
