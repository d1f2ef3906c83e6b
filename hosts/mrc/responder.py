"""The receiving half of a queue pair. It places payloads and answers with SACKs and NACKs.

A packet is placed in memory when it arrives, in any order [P1 §2.1]. A duplicate is answered but not placed
again. An answer is built only when the driver next requests frames, so that one SACK can answer several
packets. Each packet with a CE mark, and each probe, gets its own SACK.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Final

from mrclab.hosts.mrc.codec import PacketBuilder
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.connection import Connection
from mrclab.hosts.mrc.evs.ev import Ev
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.packets import DataPacket, SackPacket, SackTrigger
from mrclab.hosts.mrc.received import Messages, ReceiveQueue, ReceiverBitmap
from mrclab.hosts.mrc.wire import (
    BTH_RETRANSMISSION,
    BTH_TIMESTAMP,
    RCVD_UNIT_BYTES,
    SYNDROME_ACK,
    Aeth,
    EvMark,
    Nack,
    NackReason,
    Opcode,
    Probe,
    timestamp,
)
from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, Status
from mrclab.hosts.rdma.frames import BTH_ACK_REQUEST, PSN_BITS, PSN_HALF, PSN_MASK, Outgoing
from mrclab.hosts.rdma.memory import MemoryRegion, MemoryTable
from mrclab.hosts.rdma.scheduler import MOST_ANSWERS

_NACK: Final = int(Opcode.NACK)
_ACK: Final = int(Opcode.ACKNOWLEDGE)
_FIRST: Final = int(Opcode.WRITE_FIRST)
_MIDDLE: Final = int(Opcode.WRITE_MIDDLE)
_MARK_NONE: Final = int(EvMark.NONE)
_MARK_SKIP: Final = int(EvMark.SKIP_ONCE)
_MARK_ALWAYS: Final = int(EvMark.ALWAYS_SKIP)
_MOST_MARKED: Final = 4096  # largest number of EVs with counted CE marks (usually some hundred EVs are used)
_SINGLE: Final = (int(Opcode.WRITE_ONLY), int(Opcode.WRITE_ONLY_IMM))
_ACK_BIT: Final = BTH_ACK_REQUEST << 24
_STAMPED: Final = BTH_TIMESTAMP << 24
_ASKED: Final = (BTH_ACK_REQUEST | BTH_RETRANSMISSION) << 24


class Responder:
    """The receiving half of one QP."""

    __slots__ = (
        *("_ack_to", "_asked", "_at_gap", "_builder", "_coalesce", "_config", "_context_ids"),
        *("_done_psn", "_emit", "_ends", "_immediates", "_keeps_reverse", "_marked", "_max_wimm"),
        *("_merged", "_messages", "_nacks", "_nak", "_own", "_plain", "_rcvd_bytes", "_region"),
        *("_regions", "_remote_qpn", "_service_time", "_since_sack", "_threshold", "_transport_ack"),
        *("_window_units", "answering", "bitmap", "bytes_placed", "ce_received", "duplicates", "error"),
        *("evs", "malformed", "messages_completed", "nacks_sent", "out_of_window", "packets_placed"),
        *("penalty", "qpn", "receives", "refusal", "restore", "sacks_sent", "trims_received", "wake"),
    )

    def __init__(
        self,
        qpn: int,
        config: MrcConfig,
        builder: PacketBuilder,
        memory: MemoryTable,
        emit: Callable[[Event], None],
        wake: Callable[[], None],
        receives: ReceiveQueue,
    ) -> None:
        self.qpn = qpn
        self.receives = receives
        self._config = config
        self._builder = builder
        self._regions = memory.regions
        self._region: MemoryRegion | None = None
        """The memory region of the last write."""
        self._emit = emit
        self.wake = wake
        """Function that is called when there is something to answer."""
        self._service_time = False
        self._keeps_reverse = config.reverse_evs == "set"
        self._max_wimm = config.max_wimm
        self._threshold = config.sack_threshold_bytes
        self._coalesce, self._at_gap = config.sack_coalesce, config.sack_at_gap
        # connect() sets these fields.
        self.evs: EvSet
        self._remote_qpn = 0
        self._context_ids = 0
        self.bitmap = ReceiverBitmap(1 << PSN_BITS, config.mpr)
        self.error = False
        self._since_sack = 0
        self._marked: dict[int, int] = {}
        """Number of consecutive CE marks, by EV."""
        self._plain: SackTrigger | None = None
        self._merged = 0
        self._asked = -1
        """Highest PSN for which an ACK was requested, if the cumulative PSN is still below it; else -1."""
        self._own: deque[SackTrigger] = deque(maxlen=MOST_ANSWERS)
        self._nacks: deque[tuple[int, int, int, int, int]] = deque(maxlen=MOST_ANSWERS)
        """Packets to refuse: EV, arrival port, PSN, reason and timestamp."""
        self.refusal: NackReason | None = None
        """If set, new packets are refused for this reason, such as a lack of buffers."""
        self.penalty = 0
        """The rcv_cwnd_pen of SACKs: the sender subtracts this many 128ths of the acknowledged bytes."""
        self.restore = False
        """The restore_cwnd of SACKs. True: the sender may undo the penalties."""
        self._window_units = 0
        self._transport_ack = False
        self._ends: dict[int, bool] = {}
        """Last PSN of each message that is not counted as complete yet; True: this packet requests an ACK."""
        self.messages_completed = 0
        """Number of complete messages, up to the first incomplete one; the MSN of an AETH."""
        self._done_psn = -1
        """Last PSN of the last message in `messages_completed`."""
        self._ack_to: tuple[int, int] | None = None
        """EV and port of the packet that a transport ACK or NAK must answer."""
        self._nak = 0
        """Syndrome of the NAK that ended this queue pair; 0: no NAK."""
        self.answering = False
        """True: something must be answered, so the queue pair stays in the scheduler's list."""
        self._immediates: dict[int, tuple[int, int, int]] = {}
        self._messages = None if config.imm_waits_for_earlier else Messages()
        self.bytes_placed = self.packets_placed = self.duplicates = self.out_of_window = 0
        self._rcvd_bytes = 0
        """Sum of the nominal sizes of all placed packets."""
        self.ce_received = self.trims_received = self.sacks_sent = self.nacks_sent = self.malformed = 0

    def connect(self, connection: Connection, evs: EvSet) -> None:
        """Set the settings of the connection and the EVs to the peer."""
        self._window_units = self._config.mpr // 128 if connection.dynamic_mpr else 0
        self._transport_ack = connection.transport_ack
        self._service_time = connection.service_time
        self._remote_qpn = connection.remote_qpn
        self._context_ids = (connection.remote_qpn & 0xFFFF) << 16 | self.qpn & 0xFFFF
        self.bitmap = ReceiverBitmap(connection.remote_psn + (1 << PSN_BITS), self._config.mpr)
        self.evs = evs

    def accept_writes_to(self, regions: dict[int, MemoryRegion]) -> None:
        """Accept writes to these regions only, by rkey."""
        self._regions, self._region = regions, None

    # Arriving packets

    def on_data(self, now_ns: int, packet: DataPacket, port: int) -> None:
        """Handle a data packet that arrived on `port`."""
        flow = packet.flow
        length = packet.length
        opcode = packet.opcode
        single = opcode in _SINGLE
        if length > packet.message_length or (single and length != packet.message_length):
            self.malformed += 1
            return
        last, stamp = packet.flags_psn, packet.timestamp
        bitmap = self.bitmap
        expected = bitmap.expected
        psn = expected + ((last - expected + PSN_HALF) & PSN_MASK) - PSN_HALF
        offset = psn - expected
        if offset >= bitmap.mpr:
            self.out_of_window += 1
            if self._config.reading.oor_nack:
                self._refuse(flow.ev, port, psn, NackReason.PSN_OOR_WINDOW, stamp)
            return
        ev, ce = flow.ev, packet.ce
        if self.error:
            self._refuse_in_error(ev, port, psn, stamp)
            return
        if self._service_time:
            stamp = self._since(now_ns, stamp) if last & _STAMPED else -1
        if offset < 0 or bitmap.bits >> offset & 1:
            self.duplicates += 1
            if offset < 0 and self._transport_ack and self._done_psn >= 0:
                self._ack_to = (ev, port)
            self._trigger(ev, port, self._mark(ev) if ce else _MARK_NONE, psn, stamp)
            return
        if self.refusal is not None:
            self._refuse(ev, port, psn, self.refusal, packet.timestamp)
            return
        if packet.imm is not None:
            waiting = self._stashed()
            if (offset and waiting >= self._max_wimm) or self.receives.lacking(packet.rqmsn, waiting):
                self._refuse_immediate(now_ns, packet, psn, port, waiting)
                return
        if length:
            region = self._region
            if region is None or region.rkey != packet.rkey or not region.registered:
                region = self._region = self._regions.get(packet.rkey)
            at = -1 if region is None else packet.address - region.address
            if region is None or at < 0 or at + length > region.length or not region.writable:
                self._end(now_ns, packet, psn, port, Status.REMOTE_ACCESS_ERROR, "")
                return
            if packet.payload is not None:
                try:
                    region.view[at : at + length] = packet.payload
                except OSError:
                    self._end(now_ns, packet, psn, port, Status.REMOTE_OPERATION_ERROR, ": memory is gone")
                    return
            self.bytes_placed += length
        self.packets_placed += 1
        self._rcvd_bytes += packet.size
        bitmap.add(psn)
        if self._messages is not None:
            for value, size, number in self._messages.add(packet, single):
                self._emit(ReceiveCompleted(now_ns, self.qpn, value, size, number, self.receives.take()))
        else:
            if packet.imm is not None:
                self._immediates[psn] = (packet.imm, packet.message_length, packet.rqmsn)
            if self._immediates and offset == 0:
                self._deliver(now_ns)
        if opcode not in (_FIRST, _MIDDLE):
            if offset or self._ends or self._transport_ack:
                self._ends[psn] = last & _ACK_BIT != 0
            else:
                self.messages_completed += 1
        if offset == 0 and self._ends:
            self._finish(ev, port)
        since = self._since_sack + (length if length > 1024 else 1024)
        due = since >= self._threshold or ce
        if last & _ASKED:
            due = True
            if psn > self._asked:
                self._asked = psn
        if 0 <= self._asked < bitmap.expected:
            # All packets up to the one that requested an ACK have arrived. Send the SACK now, because
            # perhaps no other packet follows.
            due = True
            self._asked = -1
        if self._at_gap and bitmap.bits:
            due = True
        if self._marked and not ce:
            self._marked.pop(ev, None)
        if due:
            self._since_sack = 0
            if ce:
                self.ce_received += 1
            self._trigger(ev, port, self._mark(ev) if ce else _MARK_NONE, psn, stamp)
        else:
            self._since_sack = since

    def _end(self, now_ns: int, packet: DataPacket, psn: int, port: int, status: Status, why: str) -> None:
        """Put the queue pair in error, because a write cannot be placed."""
        self.error = True
        self._refuse(packet.flow.ev, port, psn, NackReason.UNEXP_EVENT, packet.timestamp)
        detail = f"write of {packet.length} B at {packet.address:#x} with rkey {packet.rkey:#x}{why}"
        self._emit(QpError(now_ns, self.qpn, status, detail))

    def _finish(self, ev: int, port: int) -> None:
        """Count the complete messages up to the first incomplete one. Send an ACK if a packet requests it."""
        expected = self.bitmap.expected
        ended = [psn for psn in self._ends if psn < expected]
        if ended:
            self.messages_completed += len(ended)
            self._done_psn = max(ended)
            requested = False
            for psn in ended:
                requested = self._ends.pop(psn) or requested
            if requested and self._transport_ack:
                self._ack_to = (ev, port)
                self._answer()

    def _refuse_immediate(self, now_ns: int, packet: DataPacket, psn: int, port: int, waiting: int) -> None:
        """Fail with a NAK if too many immediates wait for earlier packets, or if no receive is posted.

        If no receive is posted for a packet that arrived early, only refuse this packet with a NACK. A NAK
        would name the expected PSN, which belongs to an earlier packet.
        """
        reading = self._config.reading
        ev, stamp = packet.flow.ev, packet.timestamp
        if waiting >= self._max_wimm:  # more immediates in flight than agreed [S-NS3]
            self._nak, status = reading.max_wimm_syndrome, Status.REMOTE_INVALID_REQUEST_ERROR
            detail = f"more than {self._max_wimm} writes with immediate in flight"
        elif psn > self.bitmap.expected:
            self._refuse(ev, port, psn, NackReason.NO_RESOURCE, stamp)
            return
        else:
            self._nak, status = reading.no_receive_syndrome, Status.REMOTE_OPERATION_ERROR
            detail = "no receive is posted for a write with immediate"
        self.error = True
        self._refuse_in_error(ev, port, psn, stamp)
        self._emit(QpError(now_ns, self.qpn, status, detail))

    def flush_receives(self, now_ns: int) -> None:
        """Complete all posted receives with status FLUSHED: the queue pair failed."""
        for wr_id in self.receives.clear():
            self._emit(ReceiveCompleted(now_ns, self.qpn, 0, 0, 0, wr_id, Status.FLUSHED))

    def _stashed(self) -> int:
        """Return how many WRITE_IMMs have arrived and wait for earlier packets."""
        return len(self._immediates) if self._messages is None else self._messages.stashed()

    def set_mpr(self, mpr: int) -> None:
        """Announce a receive window, at most the configured window. SACKs carry the announcement."""
        if not self._window_units:
            raise ValueError("dynamic MPR was not agreed on")
        if mpr % 128 or not 128 <= mpr <= self._config.mpr:
            raise ValueError(f"mpr must be a multiple of 128 up to {self._config.mpr}, not {mpr}")
        self._window_units = mpr // 128

    def set_penalty(self, penalty: int, *, restore: bool) -> None:
        """Send rcv_cwnd_pen and restore_cwnd from now on. Raise ValueError if `penalty` exceeds 7 bits."""
        if not 0 <= penalty <= 127:
            raise ValueError(f"the penalty has 7 bits, not {penalty}")
        self.penalty, self.restore = penalty, restore

    def _mark(self, ev: int) -> int:
        """Return the mark that a SACK carries for an EV whose packet had a CE mark."""
        limit = self._config.always_skip_after
        if not limit:
            return _MARK_SKIP
        count = self._marked[ev] = self._marked.get(ev, 0) + 1
        if count < limit:
            if len(self._marked) > _MOST_MARKED:  # A peer can name any EV, so memory must be limited.
                del self._marked[next(iter(self._marked))]
            return _MARK_SKIP
        del self._marked[ev]
        return _MARK_ALWAYS

    def _deliver(self, now_ns: int) -> None:
        expected = self.bitmap.expected
        for psn in sorted(psn for psn in self._immediates if psn < expected):
            imm, length, rqmsn = self._immediates.pop(psn)
            self._emit(ReceiveCompleted(now_ns, self.qpn, imm, length, rqmsn, self.receives.take()))

    def on_trimmed(
        self, now_ns: int, psn24: int, ev: int, port: int, last_hop: bool, stamp: int | None
    ) -> None:
        """Handle a trimmed packet, which has lost its payload: request it again at once [P1 §2.1].

        `stamp` is the packet's timestamp, None without TSETH.
        """
        self.trims_received += 1
        psn = self.bitmap.locate(psn24)
        if psn >= self.bitmap.expected + self.bitmap.mpr:
            self.out_of_window += 1
            if self._config.reading.oor_nack:
                self._refuse(ev, port, psn, NackReason.PSN_OOR_WINDOW, stamp or 0)
        elif self.error:
            self._refuse_in_error(ev, port, psn, stamp or 0)
        elif not self.bitmap.is_new(psn):
            if self._service_time:
                stamp = -1 if stamp is None else self._since(now_ns, stamp)
            self._trigger(ev, port, _MARK_NONE, psn, stamp or 0)
        else:
            reason = NackReason.TRIMMED_LASTHOP if last_hop else NackReason.TRIMMED
            self._refuse(ev, port, psn, reason, stamp or 0)

    def on_probe(self, now_ns: int, probe: Probe, ev: int, port: int, ce: bool) -> None:
        """Handle a reliability probe: answer with a SACK that has the probe's id [SPEC §7.4.6]."""
        mark = _MARK_SKIP if ce else _MARK_NONE
        stamp = self._since(now_ns, probe.tx_timestamp) if self._service_time else probe.tx_timestamp
        self._own.append(SackTrigger(ev, port, mark, probe.probe_id, stamp, True))
        if self._nak or (self._transport_ack and self._done_psn >= 0):
            # The last transport ACK may have been lost, and no other event would send it again.
            self._ack_to = (ev, port)
        self._answer()

    def _trigger(self, ev: int, port: int, mark: int, psn: int, stamp: int) -> None:
        trigger = SackTrigger(ev, port, mark, psn, stamp, False)
        if mark:
            self._own.append(trigger)
        else:
            if self._plain is not None:
                self._merged += 1
                if self._merged >= self._coalesce:
                    self._own.append(self._plain)
                    self._merged = 0
            self._plain = trigger
        if not self.answering:
            self._answer()

    def _refuse(self, ev: int, port: int, psn: int, reason: NackReason, stamp: int) -> None:
        self._nacks.append((ev, port, psn & PSN_MASK, int(reason), stamp))
        self._answer()

    def _refuse_in_error(self, ev: int, port: int, psn: int, stamp: int) -> None:
        """Repeat the NAK that ended a failed queue pair. If there was no NAK, refuse with a NACK."""
        if self._nak:
            self._ack_to = (ev, port)
            self._answer()
        else:
            self._refuse(ev, port, psn, NackReason.UNEXP_EVENT, stamp)

    @staticmethod
    def _since(now_ns: int, stamp: int) -> int:
        """Return the timestamp minus the arrival time. The send time is added when the answer is sent.

        So the RTT that the peer measures excludes the time between arrival and answer.
        """
        return stamp - timestamp(now_ns) & 0xFFFF

    def _answer(self) -> None:
        if not self.answering:
            self.answering = True
            self.wake()

    # Answers

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> None:
        """Append answers to `out`, up to about `limit` frames; `answering` stays True if answers remain.

        NACKs are sent first, because they start retransmissions. After an error, NACKs are sent last,
        after the ACKs: a fatal NACK ends all writes that are not acknowledged yet.
        """
        start = len(out)
        builder = self._builder
        if self._keeps_reverse:
            self.evs.now_ns = now_ns  # `reverse` compares `now_ns` with the time at which an EV last worked.
        if self._nacks and not self.error and not self._emit_nacks(out, start + limit, free_ports):
            return
        if self._ack_to is not None and len(out) - start < limit:
            ev = self.evs.reverse(*self._ack_to, free_ports)
            if ev is None:
                return
            self._ack_to = None
            psn, syndrome = self._done_psn, SYNDROME_ACK
            if self._nak:
                psn, syndrome = self.bitmap.expected, self._nak
            aeth = Aeth(self.messages_completed, syndrome).pack()
            out.append((ev.port, builder.control(ev, _ACK, self._remote_qpn, psn, aeth)))
        while self._own and len(out) - start < limit:
            trigger = self._own[0]
            ev = self.evs.reverse(trigger.ev, trigger.port, free_ports)
            if ev is None:
                break
            del self._own[0]
            self._emit_sacks(now_ns, trigger, ev, out)
        plain = self._plain
        if plain is not None:
            self._plain = None
            self._merged = 0
            ev = None
            if not self._own and len(out) - start < limit:
                ev = self.evs.reverse(plain.ev, plain.port, free_ports)
            if ev is None:
                self._own.append(plain)
            else:
                self._emit_sacks(now_ns, plain, ev, out)
        if not self._own and self._ack_to is None:
            if self._nacks:
                self._emit_nacks(out, start + limit, free_ports)
            self.answering = bool(self._nacks)

    def _emit_nacks(self, out: list[Outgoing], end: int, free_ports: Collection[int] | None) -> bool:
        """Append NACKs until `out` has `end` frames; return False if a port was busy."""
        while self._nacks and len(out) < end:
            ev_value, port, refused, reason, stamp = self._nacks[0]
            ev = self.evs.reverse(ev_value, port, free_ports)
            if ev is None:
                return False
            del self._nacks[0]
            ids = self._context_ids
            nack = Nack(reason, ev_value, refused, ids >> 16, ids & 0xFFFF, tx_timestamp=stamp)
            frame = self._builder.control(ev, _NACK, self._remote_qpn, refused, nack.pack())
            out.append((ev.port, frame))
            self.nacks_sent += 1
        return True

    def _emit_sacks(self, now_ns: int, trigger: SackTrigger, ev: Ev, out: list[Outgoing]) -> None:
        """Append the SACKs that answer a trigger, over this EV."""
        bitmap = self.bitmap
        if self._service_time:
            stamp = trigger.stamp
            trigger.stamp = 0 if stamp < 0 else stamp + timestamp(now_ns) & 0xFFFF
        if not bitmap.bits:
            self._emit_sack(trigger, ev, 1, 0, out)
            return
        for sack_offset, bits in bitmap.windows():
            self._emit_sack(trigger, ev, sack_offset, bits, out)

    def _emit_sack(
        self, trigger: SackTrigger, ev: Ev, sack_offset: int, bits: int, out: list[Outgoing]
    ) -> None:
        """Append a SACK whose bitmap `bits` starts at `sack_offset`."""
        bitmap = self.bitmap
        cack = bitmap.expected - 1
        offset = (trigger.number if trigger.probe else trigger.number - cack) & 0xFFFF
        packet = SackPacket(
            self._remote_qpn,
            cack & PSN_MASK,
            trigger.ev,
            offset - 0x10000 if offset & 0x8000 else offset,
            trigger.mark,
            trigger.probe,
            sack_offset,
            bits,
            self._window_units,
            trigger.stamp,
            self.penalty,
            self.restore,
            (self._rcvd_bytes + RCVD_UNIT_BYTES - 1) // RCVD_UNIT_BYTES & 0xFFFFFF,
        )
        out.append((ev.port, self._builder.sack(ev, packet, self._context_ids, bitmap.out_of_order)))
        self.sacks_sent += 1
