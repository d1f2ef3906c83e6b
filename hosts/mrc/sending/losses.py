"""Packets that leave flight without an acknowledgement, and probes that ask what became of them.

A packet leaves flight when it is lost, or timed out while the peer is silent. Reliability probes [SPEC
§7.4.6] settle losses, or the health of EVs: a tail probe may take any EV; a health probe takes the EV in
state ASSUMED_BAD that it asks about.
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
    """The losses of one queue pair, and their account in its congestion window."""

    __slots__ = ("_board", "_congestion", "_evs", "_note", "_overhead", "_qpn", "_recovery", "lost", "silent",
                 "spurious")  # fmt: skip

    def __init__(self, qpn: int, board: Scoreboard, recovery: Recovery, note: Note) -> None:
        self._qpn = qpn
        self._board = board
        self._recovery = recovery
        self._note = note
        # Set by connect().
        self._evs: EvSet
        self._congestion = CongestionControl(0)
        self._overhead = 0
        self.silent = False
        """The ACK timer ran out and the peer has not answered since; see `set_silent`."""
        self.lost = self.spurious = 0
        """Packets that counted as lost, and those of them that had arrived."""

    def connect(self, evs: EvSet, congestion: CongestionControl) -> None:
        """Learn what losses are reported to."""
        self._evs = evs
        self._congestion = congestion
        self._overhead = congestion.overhead_bytes

    def lose(self, now_ns: int, packet: SentPacket, reason: LossReason) -> None:
        """Queue a packet for retransmission; its size in the window is the caller's to account for."""
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
        """Declare packets lost for want of an acknowledgement."""
        size = 0
        for packet in packets:
            size += packet.length + self._overhead
            self.lose(now_ns, packet, reason)
        self._congestion.on_loss(now_ns, size)

    def on_spurious(self, now_ns: int, packet: SentPacket) -> None:
        """Take in that a transmission which counted as lost had arrived."""
        self.spurious += 1
        if packet.by_window:
            self._recovery.on_spurious(now_ns)
        self._evs.on_late_arrival(now_ns, packet.ev)
        window_ns = self._recovery.window.ns(now_ns)
        self._note(SpuriousLoss, (now_ns, self._qpn, packet.psn & PSN_MASK, packet.ev.value, window_ns))

    def on_port_down(self, now_ns: int, port: int) -> None:
        """If a plane left service, send its packets in flight again on other planes.

        Its EVs are not to blame.
        """
        self.set_silent(False)
        for packet in self._board.in_flight():
            if packet.ev.port == port:
                self._congestion.on_withdrawn(packet.length + self._overhead)
                self.lose(now_ns, packet, LossReason.PORT_DOWN)

    def on_ack_timeout(self, now_ns: int) -> bool:
        """Take timed-out packets out of the window; return whether any count as lost by now.

        A packet does if it was sent long before the peer's last packet arrived.
        """
        lost = self._recovery.timed_out(now_ns)
        if lost:
            self.set_silent(False)
            self.infer(now_ns, lost, LossReason.TIMEOUT)
        elif self._board.inflight_packets:
            self.set_silent(True)
        return bool(lost)

    def set_silent(self, silent: bool) -> None:
        """Take what timed out at a silent peer out of the window, or put it back once the peer answers.

        A packet that times out leaves flight [SPEC §8, OnInferredLoss]: otherwise a peer that is gone would
        take its share of the window from other queue pairs for ever. Answers to probes decide later whether
        the packet is lost and its EV to blame. Until then no data follows it.
        """
        if silent is not self.silent:
            self.silent = silent
            board = self._board
            size = board.inflight_bytes + self._overhead * board.inflight_packets
            self._congestion.on_withdrawn(size if silent else -size)


_OPCODE: Final = int(Opcode.PROBE_REQUEST)
_TAIL_PROBES_KEPT: Final = 16


class Probes:
    """The wanted probes and the unanswered ones."""

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
        # Set by connect().
        self._evs: EvSet
        self._service_time = False
        self._remote_qpn = 0
        self._spdcid = qpn & 0xFFFF
        self._dpdcid = 0
        self.wanted: list[tuple[Ev | None, bool]] = []
        """The EV, None for any, and whether it is a tail probe."""
        self.outstanding: dict[int, tuple[Ev, int, bool]] = {}
        """EV, send time and whether it is a tail probe, by probe id."""
        self._probe_id = 0
        self._last_tail: Ev | None = None
        """EV of the last tail probe."""

    def connect(self, remote_qpn: int, evs: EvSet, *, service_time: bool) -> None:
        """Learn where probes go, and whether answers tell how long they were held back."""
        self._service_time = service_time
        self._remote_qpn = remote_qpn
        self._dpdcid = remote_qpn & 0xFFFF
        self._evs = evs

    def want_tail(self, count: int) -> None:
        """Request so many tail probes, less the ones that still wait for a free port."""
        waiting = sum(ev is None for ev, _ in self.wanted)
        self.wanted.extend((None, True) for _ in range(count - waiting))

    def want_due(self, now_ns: int) -> None:
        """Ask for the health probes that are due."""
        if self._evs.bad:
            for ev in self._evs.due_probes(now_ns, self._recovery.rtt.probe_timeout_ns):
                if (ev, False) not in self.wanted:
                    self.wanted.append((ev, False))

    def emit(self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> int:
        """Append up to `limit` probes to `out`; return how many."""
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
                # Unanswered ones would add up over the hours. Older ones are not answered any more.
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
        """Return the EV that a tail probe should not take.

        That is the EV of the probe before it, if nothing came back since, otherwise that of the newest packet
        in flight.
        """
        if self._recovery.tail.probes > 1:
            return self._last_tail
        packet = self._recovery.newest_in_flight()
        return None if packet is None else packet.ev

    def on_answer(self, now_ns: int, probe_id: int, marked: bool, echo: int) -> tuple[int | None, int]:
        """Take in the answer to a probe; return its RTT and when it was sent; None and -1 if none waits."""
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
        """Forget all probes."""
        self.wanted.clear()
        self.outstanding.clear()
