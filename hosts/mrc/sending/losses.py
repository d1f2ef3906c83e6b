"""Lost packets, packets to a silent peer, and the probes that find out what happened to packets.

Lost packets and packets to a silent peer do not count as in flight. Reliability probes [SPEC §7.4.6] find out
whether packets arrived and whether EVs work. A tail probe looks for lost packets and may use any EV. A health
probe tests an EV in state ASSUMED_BAD, and uses this EV.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mrclab.hosts.mrc.codec import PacketBuilder
from mrclab.hosts.mrc.congestion import CongestionControl
from mrclab.hosts.mrc.events import RETIRE_FOR, ProbeAnswered, ProbeSent, SpuriousLoss
from mrclab.hosts.mrc.evs.ev import Ev
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.outstanding import Scoreboard, SentPacket
from mrclab.hosts.mrc.sending.recovery import Recovery
from mrclab.hosts.mrc.wire import Opcode, Probe, timestamp, without_hold
from mrclab.hosts.rdma.events import LossReason, Note, PacketLost
from mrclab.hosts.rdma.frames import PSN_MASK, Outgoing


class Losses:
    """The losses of one queue pair, which this class reports to congestion control."""

    __slots__ = ("_board", "_congestion", "_evs", "_note", "_overhead", "_qpn", "_recovery", "lost", "silent",
                 "spurious")  # fmt: skip

    def __init__(self, qpn: int, board: Scoreboard, recovery: Recovery, note: Note) -> None:
        self._qpn = qpn
        self._board = board
        self._recovery = recovery
        self._note = note
        # connect() sets these fields.
        self._evs: EvSet
        self._congestion = CongestionControl(0)
        self._overhead = 0
        self.silent = False
        """True: the ACK timer has run out, and the peer has not answered since; see `set_silent`."""
        self.lost = self.spurious = 0
        """Number of packets that counted as lost, and number of lost packets that in fact arrived."""

    def connect(self, evs: EvSet, congestion: CongestionControl) -> None:
        """Set the EVs and the congestion control to which losses are reported."""
        self._evs = evs
        self._congestion = congestion
        self._overhead = congestion.overhead_bytes

    def lose(self, now_ns: int, packet: SentPacket, reason: LossReason) -> None:
        """Queue a packet for retransmission. The caller reports the packet's size to congestion control."""
        self._board.on_lost(packet)
        packet.by_window = reason is LossReason.GAP or reason is LossReason.PROBE
        self.lost += 1
        ev, psn = packet.ev, packet.psn & PSN_MASK
        self._note(PacketLost, (now_ns, self._qpn, psn, ev.value, ev.port, reason, packet.sent_ns))
        retire = RETIRE_FOR.get(reason)
        if retire is not None:
            self._evs.on_lost(now_ns, ev, psn, retire)
            self._recovery.on_retired(now_ns)

    def infer(self, now_ns: int, packets: list[SentPacket], reason: LossReason) -> None:
        """Declare packets lost because they were not acknowledged."""
        size = 0
        for packet in packets:
            size += packet.length + self._overhead
            self.lose(now_ns, packet, reason)
        self._congestion.on_loss(now_ns, size)

    def on_spurious(self, now_ns: int, packet: SentPacket) -> None:
        """Record that a transmission that counted as lost had in fact arrived."""
        self.spurious += 1
        if packet.by_window:
            self._recovery.on_spurious(now_ns)
        self._evs.on_late_arrival(now_ns, packet.ev)
        window_ns = self._recovery.window.ns(now_ns)
        self._note(SpuriousLoss, (now_ns, self._qpn, packet.psn & PSN_MASK, packet.ev.value, window_ns))

    def on_port_down(self, now_ns: int, port: int) -> None:
        """If a port went down, send the packets in flight of its plane again on other planes.

        No EV is retired for this reason.
        """
        self.set_silent(False)
        for packet in self._board.in_flight():
            if packet.ev.port == port:
                self._congestion.on_withdrawn(packet.length + self._overhead)
                self.lose(now_ns, packet, LossReason.PORT_DOWN)

    def on_ack_timeout(self, now_ns: int) -> bool:
        """Handle an ACK timeout; return True if packets are lost.

        A packet counts as lost if it was sent long before the peer's last packet arrived. If no packet is
        lost, no packet counts as in flight until the peer answers; see `set_silent`.
        """
        lost = self._recovery.timed_out(now_ns)
        if lost:
            self.set_silent(False)
            self.infer(now_ns, lost, LossReason.TIMEOUT)
        elif self._board.inflight_packets:
            self.set_silent(True)
        return bool(lost)

    def set_silent(self, silent: bool) -> None:
        """If the peer is silent, count no packets to it as in flight; count them again when it answers.

        The specification does the same with a packet that times out [SPEC §8, OnInferredLoss]. Without this,
        the packets to a failed peer would fill a window that other queue pairs share. Later, answers to
        probes decide whether a packet is lost. Until then this queue pair sends no data.
        """
        if silent is not self.silent:
            self.silent = silent
            board = self._board
            size = board.inflight_bytes + self._overhead * board.inflight_packets
            self._congestion.on_withdrawn(size if silent else -size)


_OPCODE: Final = int(Opcode.PROBE_REQUEST)
_TAIL_PROBES_KEPT: Final = 16


class Probes:
    """The probes of one queue pair: those to send, and those without an answer."""

    def __init__(
        self,
        qpn: int,
        builder: PacketBuilder,
        tclass: int,
        recovery: Recovery,
        note: Note,
    ) -> None:
        self._qpn = qpn
        self._builder = builder
        self._tclass = tclass
        self._recovery = recovery
        self._note = note
        # connect() sets these fields.
        self._evs: EvSet
        self._service_time = False
        self._remote_qpn = 0
        self._spdcid = qpn & 0xFFFF
        self._dpdcid = 0
        self.wanted: list[tuple[Ev | None, bool]] = []
        """Probes to send: the EV (None for any), and whether it is a tail probe."""
        self.outstanding: dict[int, tuple[Ev, int, bool]] = {}
        """Probes without an answer, by id: EV, send time, and whether it is a tail probe."""
        self._probe_id = 0
        self._last_tail: Ev | None = None
        """EV of the last tail probe."""

    def connect(self, remote_qpn: int, evs: EvSet, *, service_time: bool) -> None:
        """Set the destination of probes. `service_time`: the peer reports how long it took to answer."""
        self._service_time = service_time
        self._remote_qpn = remote_qpn
        self._dpdcid = remote_qpn & 0xFFFF
        self._evs = evs

    def want_tail(self, count: int) -> None:
        """Request tail probes until `count` of them wait to be sent, including probes that already wait."""
        waiting = sum(ev is None for ev, _ in self.wanted)
        self.wanted.extend((None, True) for _ in range(count - waiting))

    def want_due(self, now_ns: int) -> None:
        """Request the health probes that are due."""
        if self._evs.bad:
            for ev in self._evs.due_probes(now_ns, self._recovery.rtt.probe_timeout_ns):
                if (ev, False) not in self.wanted:
                    self.wanted.append((ev, False))

    def emit(self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> int:
        """Append up to `limit` probes to `out`; return their number."""
        start = len(out)
        if self._recovery.gap and self._recovery.wants_gap_probe(now_ns):
            self.want_tail(1)
        for _ in range(min(len(self.wanted), limit)):
            wanted, tail = self.wanted.pop(0)
            ev = wanted
            if ev is not None and not ev.plane.up:
                continue
            if ev is None:
                ev = self._evs.pick_aside(free_ports, self._suspect())
            elif free_ports is not None and ev.port not in free_ports:
                ev = None
            if ev is None:
                self.wanted.append((wanted, tail))
                continue
            self._probe_id = probe_id = (self._probe_id + 1) & 0xFFFF
            if len(self.outstanding) >= 2 * len(self._evs.by_value) + _TAIL_PROBES_KEPT:
                # Without this limit, unanswered probes would accumulate. So drop the oldest probe.
                del self.outstanding[next(iter(self.outstanding))]
            self.outstanding[probe_id] = (ev, now_ns, tail)
            if tail:
                self._recovery.on_tail_probe(now_ns)
                self._last_tail = ev
            elif ev.probing is not None:
                ev.probing.unanswered = probe_id
            extension = Probe(probe_id, self._spdcid, self._dpdcid, timestamp(now_ns)).pack()
            frame = self._builder.probe(ev, self._tclass, _OPCODE, self._remote_qpn, 0, extension)
            out.append((ev.port, frame))
            self._note(ProbeSent, (now_ns, self._qpn, ev.value, ev.port, probe_id, tail))
        return len(out) - start

    def _suspect(self) -> Ev | None:
        """Return the EV that a tail probe should avoid.

        If the last tail probe is unanswered, return the EV of that probe. Otherwise return the EV of the
        newest packet in flight.
        """
        if self._recovery.tail.probes > 1:
            return self._last_tail
        packet = self._recovery.newest_in_flight()
        return None if packet is None else packet.ev

    def on_answer(self, now_ns: int, probe_id: int, marked: bool, echo: int) -> tuple[int | None, int]:
        """Handle the answer to a probe; return its RTT and send time, or (None, -1) for an unknown id."""
        probe = self.outstanding.pop(probe_id, None)
        if probe is None:
            return None, -1
        ev, sent_ns, tail = probe
        rtt_ns = now_ns - sent_ns
        if self._service_time:
            rtt_ns = without_hold(rtt_ns, sent_ns, echo)
        self._note(ProbeAnswered, (now_ns, self._qpn, ev.value, ev.port, probe_id, rtt_ns))
        self._evs.on_acked(ev)
        self._recovery.on_probe_answer(rtt_ns, sent_ns, tail=tail)
        if not tail and ev.probing is not None and ev.probing.unanswered == probe_id:
            self._evs.on_probe_answer(now_ns, ev, marked)
        return rtt_ns, sent_ns

    def clear(self) -> None:
        """Remove all probes."""
        self.wanted.clear()
        self.outstanding.clear()
