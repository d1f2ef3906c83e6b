"""A RoCEv2 queue pair: a requester and a responder that share one path to one peer."""

from __future__ import annotations

from collections.abc import Collection

from mrclab.hosts.rdma.frames import Outgoing
from mrclab.hosts.rdma.queue_pair import QueuePair
from mrclab.hosts.roce.connection import Connection
from mrclab.hosts.roce.requester import Requester
from mrclab.hosts.roce.responder import Responder

_TURN = 8


class RoceQueuePair(QueuePair):
    """One queue pair of a RoCEv2 endpoint."""

    def __init__(self, qpn: int, requester: Requester, responder: Responder, connection: Connection) -> None:
        super().__init__(qpn, _TURN)
        self.requester = requester
        self.responder = responder
        self.connection = connection
        self.path_ev = 0
        """EV of its path, by which counters name the path."""

    def has_data(self) -> bool:
        """Return whether there is a packet to send that only the rate may hold back."""
        return self.requester.has_data()

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` would produce something now, if the port is free."""
        return self.requester.ready(now_ns)

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`; return how many."""
        if free_ports is not None and self.requester.port not in free_ports:
            return 0
        return self.requester.emit_frames(now_ns, out, limit)

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append ACKs, NAKs and CNPs; return whether some remain."""
        if free_ports is None or self.requester.port in free_ports:
            self.responder.emit_frames(out, limit)
        return self.responder.answering

    def next_timer(self, now_ns: int) -> int | None:
        """Return when `handle_timer` should be called; None when nothing waits."""
        return self.requester.next_timer(now_ns, self.queued)

    def timer_drifts(self) -> bool:
        """Return whether the timer may come nearer by itself: the rate that it waits for may rise."""
        limiter = self.requester.limiter
        return limiter is not None and limiter.limiting and not self.queued and self.requester.has_data()

    def handle_timer(self, now_ns: int) -> None:
        """Do what is due."""
        self.requester.handle_timer(now_ns)
