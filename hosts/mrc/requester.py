"""The sending half of a queue pair: cuts writes into packets, sprays them, repairs losses, completes in
order.

Sending one packet is the hot path: one EV from the rotation, one `Struct` call for BTH, METH and RETH, one
CRC pass over the payload and one copy of it, into the frame. Acknowledgement costs one look-up per PSN that
changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Final

from hosts.mrc.config import MrcConfig
from hosts.mrc.congestion import CongestionControl, FixedWindow
from hosts.mrc.ev import Ev, EvInput, EvSet
from hosts.mrc.events import ProbeAnswered, ProbeSent, RetireReason, SpuriousLoss, WindowChanged
from hosts.mrc.frames import FrameOptions
from hosts.mrc.loss import AckTimer, ReorderGuard, TailTimer
from hosts.mrc.sack import Scoreboard, SentPacket
from hosts.mrc.wire import (
    BTH_RETRANSMISSION,
    BTH_TIMESTAMP,
    DATA_STRUCT,
    DATA_TS_STRUCT,
    METH_LEN,
    SETH_MARK_SHIFT,
    SETH_PROBE_REPLY,
    TSETH_FTYPE,
    TSETH_LEN,
    EvMark,
    NackReason,
    Opcode,
    Probe,
    since_stamp,
    timestamp,
)
from hosts.rdma.counters import EvState
from hosts.rdma.events import Event, LossReason, PacketLost, QpError, Retransmitted, SendCompleted, Status
from hosts.rdma.frames import traffic_class
from hosts.rdma.headers import (
    BTH_ACK_REQUEST,
    BTH_LEN,
    BTH_STRUCT,
    ICRC_LEN,
    IMM_LEN,
    IMM_STRUCT,
    RETH_LEN,
    UDP_LEN,
)
from hosts.rdma.icrc import crc32
from hosts.rdma.psn import PSN_BITS, PSN_MASK, expand
from hosts.rdma.rtt import RttEstimator

Frame = tuple[int, bytes]
"""NIC port, and a whole Ethernet frame for it."""

_ONLY: Final = int(Opcode.WRITE_ONLY)
_ONLY_IMM: Final = int(Opcode.WRITE_ONLY_IMM)
_FIRST: Final = int(Opcode.WRITE_FIRST)
_MIDDLE: Final = int(Opcode.WRITE_MIDDLE)
_LAST: Final = int(Opcode.WRITE_LAST)
_LAST_IMM: Final = int(Opcode.WRITE_LAST_IMM)
_MARK_SKIP: Final = int(EvMark.SKIP_ONCE)
_MARK_ALWAYS: Final = int(EvMark.ALWAYS_SKIP)
_UNKNOWN: Final = EvState.UNKNOWN
_WITH_IMM: Final = (_LAST_IMM, _ONLY_IMM)
_ACK_BIT: Final = BTH_ACK_REQUEST << 24
_RTX_BIT: Final = BTH_RETRANSMISSION << 24
_TS_BIT: Final = BTH_TIMESTAMP << 24
_DATA_OVERHEAD: Final = UDP_LEN + BTH_LEN + METH_LEN + RETH_LEN + ICRC_LEN
_NOTHING: Final[deque[Any]] = deque()
_TAIL_PROBES_KEPT: Final = 16
_RETIRE_FOR: Final = {
    LossReason.GAP: RetireReason.LOSS,
    LossReason.PROBE: RetireReason.LOSS,
    LossReason.TIMEOUT: RetireReason.TIMEOUT,
}


class WorkRequest:
    """One posted write."""

    __slots__ = ("data", "imm", "last_psn", "length", "msn", "offset", "rkey", "rqmsn", "va", "wr_id")

    def __init__(
        self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None, msn: int, rqmsn: int
    ) -> None:
        self.wr_id = wr_id
        self.data = data
        self.length = len(data)
        self.va = va
        self.rkey = rkey
        self.imm = imm
        self.msn = msn
        self.rqmsn = rqmsn
        self.offset = 0
        """Bytes already cut into packets."""
        self.last_psn = -1
        """PSN of the last packet, once it is sent."""


class Requester:
    """The sending half of one QP."""

    def __init__(
        self,
        qpn: int,
        first_psn: int,
        config: MrcConfig,
        options: FrameOptions,
        emit: Callable[[Event], None],
    ) -> None:
        self.qpn = qpn
        self._config = config
        self._options = options
        self._emit = emit
        self.congestion: CongestionControl = FixedWindow(config.cwnd_bytes)
        self._overhead = 0
        self._reported_cwnd = -1
        self._reported_ns = -1 << 62
        self._rcvd_units = 0
        # One turn of the wire space ahead, so that no PSN near the first is ever negative.
        self.board = Scoreboard(first_psn + (1 << PSN_BITS), config.mpr)
        self.rtt = RttEstimator(config.initial_rtt_ns)
        self.guard = ReorderGuard(config, self.rtt)
        self.tail = TailTimer(config, self.rtt)
        self.ack_timer = AckTimer(config, self.rtt)
        self.error: Status | None = None
        self.heard_ns = -1
        """When the last valid frame of the peer came in."""
        # Set by connect().
        self.evs: EvSet
        self._remote_qpn = 0
        self._mtu = config.mtu_bytes
        self._mpr = config.mpr
        self._max_imms = config.max_wimm
        self._dynamic_mpr = self._transport_ack = False
        self._imms = 0
        """WRITE_IMMs begun and not complete."""
        self._in_memory = self.board.una
        """Below this PSN everything is known to be in the peer's memory, by transport ACKs."""

        self._timestamps = config.timestamps
        self._pkey = config.pkey
        dscp = config.dscp
        self._tc_data = traffic_class(dscp.trimmable if config.trim else dscp.no_trim, ecn_capable=True)
        self._tc_retx = traffic_class(dscp.trimmable_retx if config.trim else dscp.no_trim, ecn_capable=True)
        self._tc_probe = traffic_class(dscp.no_trim, ecn_capable=True)

        self._to_send: deque[WorkRequest] = deque()
        self._open: deque[WorkRequest] = deque()
        self._msn = 0
        self._rqmsn = 0
        self._order: deque[SentPacket] = deque()
        """Transmissions by time, some of them acknowledged or repeated meanwhile."""
        self._asked: Ev | None = None
        """Of the last tail probe."""
        self._newest_acked_ns = -1
        self._late_ready = False
        self._gap = False
        """The oldest packet in flight was overtaken, by too little to count."""
        self._gap_due_ns = 0
        """When to look at that again; 0 for never."""
        self._wanted_probes: deque[tuple[Ev | None, bool]] = deque()
        self._probes: dict[int, tuple[Ev, int, bool]] = {}
        self._probe_id = 0
        self.packets_sent = self.packets_retransmitted = self.packets_lost = self.packets_spurious = 0
        self.bytes_acked = self.sacks_received = self.nacks_received = self.bogus_received = 0

    def connect(
        self,
        remote_qpn: int,
        mtu_bytes: int,
        mpr: int,
        trim_nack: bool,
        evs: EvSet,
        congestion: CongestionControl,
        max_wimm: int,
        dynamic_mpr: bool,
        transport_ack: bool,
    ) -> None:
        """Learn the peer's side of the connection, and the controller of the way there."""
        self.congestion = congestion
        self._overhead = congestion.overhead_bytes
        self._max_imms = max_wimm
        self._dynamic_mpr = dynamic_mpr
        self._transport_ack = transport_ack
        self._remote_qpn = remote_qpn
        self._mtu = min(mtu_bytes, self._config.mtu_bytes)
        self._mpr = min(mpr, self._config.mpr)
        self.evs = evs
        if not trim_nack:
            # A peer that does not answer trimmed packets must not be sent trimmable ones.
            self._tc_data = self._tc_retx = self._tc_probe

    # What the application asks

    def post(
        self, now_ns: int, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None
    ) -> WorkRequest:
        """Queue a write; `data` must stay unchanged until the request completes."""
        request = WorkRequest(wr_id, data, va, rkey, imm, self._msn, self._rqmsn)
        if self.error is not None:
            self._emit(SendCompleted(now_ns, self.qpn, wr_id, Status.FLUSHED, request.length))
            return request
        self._msn = (self._msn + 1) & 0xFFFF
        if imm is not None:
            self._rqmsn = (self._rqmsn + 1) & 0xFFFF
        self._to_send.append(request)
        self._open.append(request)
        return request

    @property
    def idle(self) -> bool:
        """Nothing posted is unfinished."""
        return not self._open

    # Sending

    def wants_to_send(self, now_ns: int) -> bool:
        """Whether `emit_frames` might produce something now."""
        return self.wants_to_probe() or (self.has_data() and self.congestion.budget_bytes(now_ns) > 0)

    def wants_to_probe(self) -> bool:
        """Whether `emit_probes` might produce something now."""
        return self._gap or bool(self._wanted_probes)

    def has_data(self) -> bool:
        """Whether there is a packet to send that only congestion control may hold back."""
        board = self.board
        if board.lost:
            return True
        if not self._to_send or board.next_psn - board.una >= self._mpr:
            return False
        request = self._to_send[0]
        return request.imm is None or request.offset > 0 or self._imms < self._max_imms

    def _unanswered(self) -> bool:
        """Whether we wait for something of the peer's."""
        if self.board.inflight_packets:
            return True
        return self._transport_ack and bool(self._open) and 0 <= self._open[0].last_psn < self.board.una

    def emit_frames(
        self, now_ns: int, out: list[Frame], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`; return how many. Probes first, then lost packets, then new
        ones.
        """
        start = len(out)
        evs = self.evs
        self.emit_probes(now_ns, out, limit, free_ports)
        board = self.board
        overhead = self._overhead
        granted = budget = self.congestion.budget_bytes(now_ns)
        idle_before = board.inflight_packets == 0 and not board.lost
        sent_any = False
        queue = self._to_send
        while board.lost and len(out) - start < limit and budget > 0:
            packet = board.oldest_lost()
            if packet is None:
                break
            ev = evs.pick(free_ports, packet.ev)
            if ev is None:
                queue = _NOTHING
                break
            board.take_lost(packet)
            self._retransmit(now_ns, packet, ev, out)
            budget -= packet.length + overhead
            sent_any = True
        mtu = self._mtu
        order = self._order
        room = limit - (len(out) - start)
        while queue and room > 0 and budget > 0 and board.next_psn - board.una < self._mpr:
            ev = evs.pick(free_ports)
            if ev is None:
                break
            request = queue[0]
            offset = request.offset
            if request.imm is not None and not offset:
                if self._imms >= self._max_imms:
                    break
                self._imms += 1
            length = request.length - offset
            psn = board.next_psn
            ack = 0
            if length > mtu:
                length = mtu
                opcode = _MIDDLE if offset else _FIRST
            else:
                if request.imm is None:
                    opcode = _LAST if offset else _ONLY
                else:
                    opcode = _LAST_IMM if offset else _ONLY_IMM
                ack = _ACK_BIT
                request.last_psn = psn
                queue.popleft()
            request.offset = offset + length
            packet = SentPacket(psn, now_ns, ev, request, offset, length, 0, None)
            board.on_sent(packet)
            order.append(packet)
            budget -= length + overhead
            if board.next_psn - board.una >= self._mpr or (
                budget <= 0 and self.congestion.pause_ns(granted - budget) >= self.rtt.srtt_ns
            ):
                # Behind this packet a window closes, for a while or until its answer: it asks for that.
                ack = _ACK_BIT
            out.append(
                (
                    ev.port,
                    self._data_frame(now_ns, psn, ev, request, offset, length, opcode, ack, self._tc_data),
                )
            )
            ev.sent += 1
            self.packets_sent += 1
            room -= 1
            sent_any = True
        if sent_any:
            self.congestion.on_sent(now_ns, granted - budget)
            self.tail.since_ns = now_ns
            if idle_before:
                self.ack_timer.since_ns = now_ns
                self.ack_timer.retries = 0
                self.tail.probes = 0
        return len(out) - start

    def _data_frame(
        self,
        now_ns: int,
        psn: int,
        ev: Ev,
        request: WorkRequest,
        offset: int,
        length: int,
        opcode: int,
        flags: int,
        tclass: int,
    ) -> bytes:
        pad = -length & 3
        udp_length = _DATA_OVERHEAD + length + pad
        if self._timestamps:
            udp_length += TSETH_LEN
            middle = DATA_TS_STRUCT.pack(
                opcode,
                pad << 4,
                self._pkey,
                self._remote_qpn,
                flags | _TS_BIT | psn & PSN_MASK,
                request.rqmsn,
                request.msn,
                timestamp(now_ns),
                TSETH_FTYPE,
                request.va + offset,
                request.rkey,
                request.length,
            )
        else:
            middle = DATA_STRUCT.pack(
                opcode,
                pad << 4,
                self._pkey,
                self._remote_qpn,
                flags | psn & PSN_MASK,
                request.rqmsn,
                request.msn,
                request.va + offset,
                request.rkey,
                request.length,
            )
        if opcode in _WITH_IMM:
            udp_length += IMM_LEN
            middle += IMM_STRUCT.pack(request.imm)
        payload: memoryview | bytes = request.data[offset : offset + length]
        if pad:
            payload = bytes(payload) + b"\0" * pad
        found = ev.heads.get(udp_length << 8 | tclass)
        head, crc = ev.head(self._options, tclass, udp_length) if found is None else found
        return b"".join((head, middle, payload, crc32(payload, crc32(middle, crc)).to_bytes(4, "little")))

    def _retransmit(self, now_ns: int, packet: SentPacket, ev: Ev, out: list[Frame]) -> None:
        psn, old, request = packet.psn, packet.ev, packet.request
        offset, length = packet.offset, packet.length
        last = offset + length == request.length
        if last:
            plain, imm = (_LAST, _LAST_IMM) if offset else (_ONLY, _ONLY_IMM)
            opcode = plain if request.imm is None else imm
        else:
            opcode = _MIDDLE if offset else _FIRST
        again = SentPacket(psn, now_ns, ev, request, offset, length, packet.tries + 1, old)
        self.board.on_sent(again)
        self._order.append(again)
        flags = _RTX_BIT | _ACK_BIT
        out.append(
            (
                ev.port,
                self._data_frame(now_ns, psn, ev, request, offset, length, opcode, flags, self._tc_retx),
            )
        )
        ev.sent += 1
        self.packets_sent += 1
        self.packets_retransmitted += 1
        self._emit(Retransmitted(now_ns, self.qpn, psn & PSN_MASK, old.value, ev.value))

    def emit_probes(
        self, now_ns: int, out: list[Frame], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` probes to `out`, which no window holds back; return how many."""
        start = len(out)
        self.evs.now_ns = now_ns
        if self._gap:
            self._gap = False
            self._probe_gap(now_ns)
        for _ in range(min(len(self._wanted_probes), limit)):
            wanted, tail = self._wanted_probes.popleft()
            ev = wanted
            if ev is not None and not ev.plane.up:
                continue
            if ev is None:
                ev = self.evs.pick_aside(free_ports, self._suspect())
            elif free_ports is not None and ev.port not in free_ports:
                ev = None
            if ev is None:
                self._wanted_probes.append((wanted, tail))
                continue
            self._probe_id = probe_id = (self._probe_id + 1) & 0xFFFF
            if len(self._probes) >= 2 * len(self.evs.by_value) + _TAIL_PROBES_KEPT:
                # Unanswered ones would add up over the hours. What is older than these is answered no more.
                del self._probes[next(iter(self._probes))]
            self._probes[probe_id] = (ev, now_ns, tail)
            if tail:
                self.tail.since_ns = now_ns
                self._asked = ev
            else:
                ev.probe_id = probe_id
            middle = BTH_STRUCT.pack(
                int(Opcode.PROBE_REQUEST),
                0,
                self._config.pkey,
                self._remote_qpn,
                self.board.next_psn & PSN_MASK,
            )
            middle += Probe(probe_id, tx_timestamp=timestamp(now_ns)).pack()
            head, crc = ev.head(self._options, self._tc_probe, UDP_LEN + len(middle) + ICRC_LEN)
            out.append((ev.port, b"".join((head, middle, crc32(middle, crc).to_bytes(4, "little")))))
            self._emit(ProbeSent(now_ns, self.qpn, ev.value, ev.port, probe_id, tail))
        return len(out) - start

    def _suspect(self) -> Ev | None:
        """Return the EV that a tail probe had better not take: that of the probe before it, if nothing came
        back since, else that of the newest packet that is still under way.
        """
        if self.tail.probes > 1:
            return self._asked
        current = self.board.current
        for packet in reversed(self._order):
            if current(packet.psn) is packet:
                return packet.ev
        return None

    # Acknowledgements

    def on_sack(self, now_ns: int, fields: tuple[int, ...]) -> None:
        """Take in a SACK: the fields of `wire.SETH_STRUCT`."""
        if self.error is not None:
            return
        head, ack_offset, entropy, _, _, cack24, _, window, base, bitmap, stamp, _, receiver = fields
        board = self.board
        cack = expand(cack24 & PSN_MASK, board.una - 1)
        if cack >= board.next_psn or cack < board.una - 1 - (1 << 22):
            self.bogus_received += 1
            return
        self.sacks_received += 1
        if window and self._dynamic_mpr:
            self._mpr = min(128 * window, self._config.mpr)
        mark = head >> SETH_MARK_SHIFT & 3
        rtt_ns: int | None = None
        reason = LossReason.GAP
        # What comes with a probe's answer had arrived before the probe: that did not overtake it.
        known = late = self._newest_acked_ns
        if head & SETH_PROBE_REPLY:
            rtt_ns = self._on_probe_answer(now_ns, ack_offset & 0xFFFF, mark)
            reason = LossReason.PROBE
        else:
            trigger = board.current(cack + ack_offset)
            if trigger is not None:
                if trigger.ev.value == entropy:
                    self.evs.prove(now_ns, trigger.ev)
                if trigger.tries == 0:
                    rtt_ns = now_ns - trigger.sent_ns
                    self.rtt.sample(rtt_ns)
                elif self._timestamps and trigger.ev.value == entropy:
                    # The echo says which transmission is answered, to 128 ns.
                    rtt_ns = since_stamp(now_ns, stamp)
                    self.rtt.sample(rtt_ns)
                elif trigger.ev.value != entropy:
                    # The echoed EV is that of an earlier transmission: it had arrived, late.
                    self._on_spurious(now_ns, trigger.psn, trigger.previous_ev)
        before = board.una
        acked, found = board.digest(cack, cack + base, bitmap)
        for packet in found:
            self.guard.on_overtaken(now_ns, known - packet.sent_ns)
            self._on_spurious(now_ns, packet.psn, packet.ev)
        if mark:
            self._on_mark(now_ns, entropy, mark)
        newest = self._newest_acked_ns
        acked_bytes = 0
        for packet in acked:
            ev = packet.ev
            ev.acked += 1
            acked_bytes += packet.length
            if ev.state is _UNKNOWN:
                self.evs.on_acked(ev)
            # A repeated packet's answer may be the first transmission's: count it only after a whole RTT [RFC
            # 8985].
            sent_ns = packet.sent_ns
            if sent_ns > newest and (packet.tries == 0 or now_ns - sent_ns >= self.rtt.min_ns):
                newest = sent_ns
            elif sent_ns < late:
                late = sent_ns
        self._newest_acked_ns = newest
        if late < known:
            self.guard.on_overtaken(now_ns, known - late)
        if acked or found:
            self.ack_timer.since_ns = now_ns
            self.tail.probes = self.ack_timer.retries = 0
            self._late_ready = False
            self.bytes_acked += acked_bytes
            if board.una != before:
                self._complete(now_ns)
        congestion = self.congestion
        congestion.on_ack(now_ns, acked_bytes + self._overhead * len(acked), rtt_ns, mark == _MARK_SKIP)
        units = receiver & 0xFFFFFF
        fresh = units - self._rcvd_units & 0xFFFFFF
        if fresh < 1 << 23:
            self._rcvd_units = units
            if receiver >> 24:
                congestion.on_receiver(now_ns, receiver >> 24 & 0x7F, bool(receiver >> 31), fresh << 8)
        if self._order:
            self._detect(now_ns, reason)
            self._gap = bool(self._order) and self._order[0].sent_ns < self._newest_acked_ns
        if congestion.cwnd_bytes != self._reported_cwnd:
            self._report_window(now_ns)

    def _report_window(self, now_ns: int) -> None:
        """Say that the window changed, at most once per `window_event_interval_ns`."""
        congestion = self.congestion
        if now_ns - self._reported_ns < self._config.window_event_interval_ns:
            return
        if self._reported_cwnd >= 0:
            self._emit(WindowChanged(now_ns, self.qpn, congestion.cwnd_bytes, congestion.inflight_bytes))
            self._reported_ns = now_ns
        self._reported_cwnd = congestion.cwnd_bytes

    def on_transport_ack(self, now_ns: int, psn24: int) -> None:
        """Take in a transport ACK: everything up to this PSN is in the peer's memory."""
        psn = expand(psn24, self.board.una - 1)
        if not self._transport_ack or self.error is not None or psn >= self.board.next_psn:
            self.bogus_received += 1
        elif psn >= self._in_memory:
            self._in_memory = psn + 1
            self.ack_timer.since_ns = now_ns
            self.tail.probes = self.ack_timer.retries = 0
            self._complete(now_ns)

    def _complete(self, now_ns: int) -> None:
        una = self._in_memory if self._transport_ack else self.board.una
        requests = self._open
        while requests and 0 <= requests[0].last_psn < una:
            request = requests.popleft()
            if request.imm is not None:
                self._imms -= 1
            self._emit(SendCompleted(now_ns, self.qpn, request.wr_id, Status.SUCCESS, request.length))

    def _on_mark(self, now_ns: int, entropy: int, mark: int) -> None:
        ev = self.evs.by_value.get(entropy)
        if ev is None:
            return
        if mark == _MARK_SKIP:
            self.evs.on_congestion(now_ns, ev, EvInput.ECN)
        elif mark == _MARK_ALWAYS:
            self.evs.on_always_skip(now_ns, ev)

    def _on_probe_answer(self, now_ns: int, probe_id: int, mark: int) -> int | None:
        probe = self._probes.pop(probe_id, None)
        if probe is None:
            return None
        ev, sent_ns, tail = probe
        rtt_ns = now_ns - sent_ns
        self.rtt.sample(rtt_ns)
        self._emit(ProbeAnswered(now_ns, self.qpn, ev.value, ev.port, probe_id, rtt_ns))
        self.evs.on_acked(ev)
        if not tail and ev.probe_id == probe_id:
            self.evs.on_probe_answer(now_ns, ev, mark == _MARK_SKIP)
        # One that asks whether a path is well again meets no queue: what it overtakes is not lost.
        if tail and sent_ns > self._newest_acked_ns:
            self._newest_acked_ns = sent_ns
        return rtt_ns

    def _on_spurious(self, now_ns: int, psn: int, ev: Ev | None) -> None:
        self.packets_spurious += 1
        self.guard.on_spurious(now_ns)
        if ev is not None:
            self.evs.on_late_arrival(now_ns, ev)
            self._emit(SpuriousLoss(now_ns, self.qpn, psn & PSN_MASK, ev.value, self.guard.ns(now_ns)))

    def _detect(self, now_ns: int, reason: LossReason) -> None:
        """Declare lost what was sent more than the guard before the newest acknowledged packet."""
        order = self._order
        board = self.board
        cut = -1
        lost_bytes = 0
        while order:
            packet = order[0]
            if board.current(packet.psn) is packet:
                if cut < 0:
                    cut = self._newest_acked_ns - self.guard.ns(now_ns)
                if packet.sent_ns >= cut:
                    break
                lost_bytes += packet.length + self._overhead
                self._lose(now_ns, packet, reason)
            order.popleft()
        if lost_bytes:
            self._tell_loss(now_ns, lost_bytes)

    def _tell_loss(self, now_ns: int, size: int) -> None:
        self.congestion.on_loss(now_ns, size)
        if self.congestion.cwnd_bytes != self._reported_cwnd:
            self._report_window(now_ns)

    def _lose(self, now_ns: int, packet: SentPacket, reason: LossReason) -> None:
        self.board.on_lost(packet)
        self.packets_lost += 1
        ev = packet.ev
        self._emit(
            PacketLost(now_ns, self.qpn, packet.psn & PSN_MASK, ev.value, ev.port, reason, packet.sent_ns)
        )
        retire = _RETIRE_FOR.get(reason)
        if retire is not None:
            self.evs.on_lost(now_ns, ev, packet.psn & PSN_MASK, retire)

    def on_nack(self, now_ns: int, reason: int, entropy: int, psn24: int) -> None:
        """Take in a NACK [SPEC §7.3]."""
        if self.error is not None:
            return
        board = self.board
        psn = expand(psn24, board.una)
        self.nacks_received += 1
        if reason == NackReason.UNEXP_EVENT:
            if board.una <= psn < board.next_psn:
                self.fail(now_ns, Status.REMOTE_ACCESS_ERROR, "the peer refused a write", psn)
            else:
                self.bogus_received += 1
            return
        packet = board.current(psn)
        if packet is None or packet.ev.value != entropy:
            # Acknowledged, or already on its way again: old news.
            return
        last_hop = reason == NackReason.TRIMMED_LASTHOP
        if reason == NackReason.TRIMMED or last_hop:
            event = EvInput.TRIMMED_LASTHOP if last_hop else EvInput.TRIMMED
            self.evs.on_congestion(now_ns, packet.ev, event)
            self.congestion.on_trim(now_ns, packet.length + self._overhead, last_hop)
            self._lose(now_ns, packet, LossReason.TRIMMED_LASTHOP if last_hop else LossReason.TRIMMED)
        else:
            # One counter for all causes; the NACKs of one window count as one try.
            self.ack_timer.retries = max(self.ack_timer.retries, packet.tries + 1)
            if self.ack_timer.exhausted:
                self.fail(now_ns, Status.RETRY_EXCEEDED, f"NACK reason {reason:#04x}", psn)
                return
            self.congestion.on_withdrawn(packet.length + self._overhead)
            self._lose(now_ns, packet, LossReason.NACK)
        # Something of ours reached the peer: that is a sign of life.
        self.ack_timer.since_ns = now_ns

    def on_port_down(self, now_ns: int, port: int) -> None:
        """Send again on other planes what is in flight on a plane that left service; its EVs are not to
        blame.
        """
        for packet in self.board.in_flight():
            if packet.ev.port == port:
                self.congestion.on_withdrawn(packet.length + self._overhead)
                self._lose(now_ns, packet, LossReason.PORT_DOWN)

    # Timers

    def next_timer(self, now_ns: int) -> int | None:
        """Return when `handle_timer` wants to be called."""
        if self.error is not None:
            return None
        due = self.evs.next_probe_ns() if self.evs.bad else None
        if self._unanswered():
            first = min(self.tail.due_ns(self.guard.ns(now_ns)), self.ack_timer.due_ns())
            if self._gap_due_ns:
                first = min(first, self._gap_due_ns)
            due = first if due is None else min(due, first)
        if self.has_data():
            send = self.congestion.next_send_ns(now_ns)
            if send is not None and (due is None or send < due):
                due = send
        return due

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""
        if self.error is not None:
            return
        if self.evs.bad:
            for ev in self.evs.due_probes(now_ns, self.rtt.probe_timeout_ns):
                if (ev, False) not in self._wanted_probes:
                    self._wanted_probes.append((ev, False))
        if not self._unanswered():
            return
        if self._gap_due_ns and now_ns >= self._gap_due_ns:
            self._gap_due_ns = 0
            self._gap = True
        tail_due = self.tail.due_ns(self.guard.ns(now_ns))
        ack_due = self.ack_timer.due_ns()
        if now_ns < tail_due and now_ns < ack_due:
            return
        if now_ns - min(tail_due, ack_due) > self._config.stall_grace_ns and not self._late_ready:
            # We were not running. What the peer answered meanwhile is still unread: give it one round.
            # Only what is due is put off, and only by that round: a machine that is always late must run
            # out of retries as well.
            self._late_ready = True
            self.tail.since_ns = now_ns
            if now_ns >= ack_due:
                self.ack_timer.since_ns += now_ns - ack_due + self._config.stall_grace_ns
            return
        self._late_ready = False
        if now_ns >= ack_due:
            self._on_ack_timeout(now_ns)
        elif now_ns >= tail_due:
            self.tail.probes += 1
            self.tail.since_ns = now_ns
            self._want_tail_probes(1)

    def _on_ack_timeout(self, now_ns: int) -> None:
        timer = self.ack_timer
        timer.retries += 1
        timer.since_ns = self.tail.since_ns = now_ns
        if timer.exhausted:
            self.fail(now_ns, Status.RETRY_EXCEEDED, "no acknowledgement", self.board.una)
            return
        # A silent peer proves nothing against a path; a peer that was heard since does.
        known = self.heard_ns - self.rtt.srtt_ns - self.guard.ns(now_ns)
        lost_bytes = 0
        for packet in self.board.in_flight():
            if packet.sent_ns < known:
                lost_bytes += packet.length + self._overhead
                self._lose(now_ns, packet, LossReason.TIMEOUT)
        if lost_bytes:
            self._tell_loss(now_ns, lost_bytes)
        # One probe per plane: whichever comes back settles, with its bitmap, what was lost.
        self._want_tail_probes(len(self.evs.planes))

    def _probe_gap(self, now_ns: int) -> None:
        """Ask about a packet that was overtaken, if nothing under way will tell: as soon as an answer can."""
        self._gap_due_ns = 0
        order = self._order
        board = self.board
        while order and board.current(order[0].psn) is not order[0]:
            order.popleft()
        if order:
            decides = order[0].sent_ns + self.guard.ns(now_ns)
            if order[0].sent_ns < self._newest_acked_ns and self.tail.since_ns <= decides:
                if decides < now_ns:
                    self._want_tail_probes(1)
                else:
                    self._gap_due_ns = decides + 1

    def _want_tail_probes(self, count: int) -> None:
        # Ports that stay busy must not make a heap of probes.
        waiting = sum(ev is None for ev, _ in self._wanted_probes)
        self._wanted_probes.extend((None, True) for _ in range(count - waiting))

    # Errors

    def fail(self, now_ns: int, status: Status, detail: str, psn: int | None) -> None:
        """Go to the error state: the request that holds `psn` ends with `status`, all others are flushed."""
        if self.error is None:
            self.flush(now_ns, status, psn)
            self._emit(QpError(now_ns, self.qpn, status, detail))

    def flush(self, now_ns: int, status: Status, psn: int | None = None) -> None:
        """End all requests, in order, without saying that the QP failed."""
        if self.error is not None:
            return
        self.error = status
        blamed = psn is None
        for request in self._open:
            hit = not blamed and (request.last_psn < 0 or (psn is not None and psn <= request.last_psn))
            blamed = blamed or hit
            self._emit(
                SendCompleted(
                    now_ns, self.qpn, request.wr_id, status if hit else Status.FLUSHED, request.length
                )
            )
        self._open.clear()
        self._to_send.clear()
        self._order.clear()
        self._probes.clear()
        self._wanted_probes.clear()
        self._gap = False
        self._gap_due_ns = 0
        self.withdraw()
        self.board.clear()

    def withdraw(self) -> None:
        """Give back what this QP holds of a window that others may share."""
        board = self.board
        self.congestion.on_withdrawn(board.inflight_bytes + self._overhead * board.inflight_packets)
