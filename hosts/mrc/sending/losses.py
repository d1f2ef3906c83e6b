"""Packets that leave flight without an acknowledgement: lost, or timed out while the peer is silent."""

from __future__ import annotations

from mrclab.hosts.mrc.congestion.control import CongestionControl
from mrclab.hosts.mrc.events import RETIRE_FOR, SpuriousLoss
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.outstanding.scoreboard import Scoreboard, SentPacket
from mrclab.hosts.mrc.sending.recovery import Recovery
from mrclab.hosts.rdma.events import LossReason, Note, PacketLost
from mrclab.hosts.rdma.psn import PSN_MASK


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
