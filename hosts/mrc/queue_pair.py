"""An MRC queue pair: a requester and a responder that share the EVs towards one peer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from mrclab.hosts.mrc.congestion.control import CongestionControl
from mrclab.hosts.mrc.connection import Connection, QpAttributes
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.mrc.responder import Responder
from mrclab.hosts.mrc.sending.requester import Requester
from mrclab.hosts.rdma.frames import Outgoing
from mrclab.hosts.rdma.psn import PSN_BITS
from mrclab.hosts.rdma.queue_pair import QueuePair, SharedWindow

_TURN: Final = 16
_SHARED_TURN: Final = 8
"""Frames of a turn where queue pairs share a window, so that none takes a narrow one whole."""


class MrcQueuePair(QueuePair):
    """One queue pair of an MRC endpoint."""

    def __init__(self, qpn: int, psn: int, requester: Requester, responder: Responder) -> None:
        super().__init__(qpn, _TURN)
        self.psn = psn
        """First PSN that it sends, 24 bits."""
        self.requester = requester
        self.responder = responder
        self.reverse_due_ns = 0
        """Before this time no probe is sent to keep an EV fresh for answers."""
        # Set by connect().
        self.evs: EvSet
        self.remote: QpAttributes

    def connect(
        self,
        remote: QpAttributes,
        peers: frozenset[bytes],
        connection: Connection,
        evs: EvSet,
        controller: CongestionControl,
        sharing: SharedWindow | None,
    ) -> None:
        """Connect to a peer; `sharing` lists the queue pairs that share the controller's window, if any."""
        self.remote = remote
        self.peers = peers
        self.evs = evs
        self.requester.connect(connection, evs, controller)
        self.sharing = sharing
        self.turn = _TURN if sharing is None else _SHARED_TURN
        self.responder.connect(connection, evs)
        self.connected = True

    def begin_at(self, psn: int) -> None:
        """Send from this PSN (24 bits) on. Raise ValueError once something was sent."""
        requester = self.requester
        if requester.packets_sent or requester.error is not None:
            raise ValueError("the first PSN is set before anything is sent")
        board = requester.board
        board.una = board.next_psn = requester.in_memory = psn + (1 << PSN_BITS)
        self.psn = psn

    def limit_sending(self, mpr: int, max_wimm: int) -> None:
        """Keep at most so many PSNs, and writes with immediate, open; never more than the peer accepts."""
        requester = self.requester
        requester.mpr = min(requester.mpr, mpr)
        requester.queue.max_imms = min(requester.queue.max_imms, max_wimm)

    def set_ack_timer(self, exponent: int, linear: int, exponential: int) -> None:
        """Set the ACK timeout, 1.024 us * 2^exponent, and its retries [SPEC Table 7-1]."""
        self.requester.recovery.ack_timer.choose(exponent, linear, exponential)

    def has_data(self) -> bool:
        """Return whether there is a packet to send that only congestion control may hold back."""
        return self.requester.has_data()

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` might produce something now."""
        return self.requester.wants_to_send(now_ns)

    def wants_to_probe(self) -> bool:
        """Return whether there are probes to send."""
        return self.requester.wants_to_probe()

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`, only probes while parked; return how many."""
        if self.parked:
            return self.requester.emit_probes(now_ns, out, limit, free_ports)
        return self.requester.emit_frames(now_ns, out, limit, free_ports)

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append SACKs, NACKs and transport ACKs; return whether some remain."""
        self.responder.emit_frames(now_ns, out, limit, free_ports)
        return self.responder.answering

    def budget_bytes(self, now_ns: int) -> int:
        """Return what congestion control lets through now."""
        return self.requester.congestion.budget_bytes(now_ns)

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when time alone lets something through."""
        return self.requester.congestion.next_send_ns(now_ns)

    def next_timer(self, now_ns: int) -> int | None:
        """Return when `handle_timer` wants to be called; now, if its rate lets an idle one send by now."""
        requester = self.requester
        congestion = requester.congestion
        if (
            congestion.paced
            and not self.queued
            and requester.has_data()
            and congestion.budget_bytes(now_ns) > 0
        ):
            return now_ns
        return requester.next_timer(now_ns)

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""
        self.requester.handle_timer(now_ns)
