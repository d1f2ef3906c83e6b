"""A RoCEv2 queue pair, and a connection, which applications see as one queue pair.

A queue pair is a requester and a responder that share one path to one peer. Each queue pair of a connection
carries one part of every message, as in NCCL with several QPs per connection. A message has arrived when all
queue pairs have delivered their parts. Each queue pair delivers in order, so parts need no numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.frames import Outgoing
from mrclab.hosts.rdma.scheduler import QueuePair
from mrclab.hosts.roce.requester import Requester
from mrclab.hosts.roce.responder import Responder


class Posted(NamedTuple):
    """A message that is posted and not complete."""

    wr_id: int
    length_bytes: int


def stripes(length_bytes: int, count: int, alignment_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of `count` parts of the same, aligned length. The last parts may be shorter."""
    size = -(-length_bytes // count)
    size = -(-size // alignment_bytes) * alignment_bytes if count > 1 else size
    for number in range(count):
        yield min(number * size, length_bytes), min((number + 1) * size, length_bytes)


class Connection:
    """One connection: it combines the completions of its queue pairs (`qpn` to `qpn + count - 1`)."""

    def __init__(self, qpn: int, count: int, emit: Callable[[Event], None]) -> None:
        self.qpn = qpn
        self._emit = emit
        self._posted: deque[Posted] = deque()
        self._sent: tuple[deque[Status], ...] = tuple(deque() for _ in range(count))
        self._received: tuple[deque[ReceiveCompleted], ...] = tuple(deque() for _ in range(count))
        self._rqmsn = 0
        self.failed = False

    def post(self, wr_id: int, length_bytes: int) -> None:
        """Record a message. Each queue pair of the connection will post a part of this message."""
        self._posted.append(Posted(wr_id, length_bytes))

    def on_sent(self, event: SendCompleted) -> None:
        """Handle the completion of one part of a message."""
        self._sent[event.qpn - self.qpn].append(event.status)
        while self._posted and all(self._sent):
            statuses = [part.popleft() for part in self._sent]
            message = self._posted.popleft()
            bad = [status for status in statuses if status is not Status.SUCCESS]
            # Report the original error. FLUSHED is only a result of this error.
            cause = [status for status in bad if status is not Status.FLUSHED]
            status = (cause or bad or [Status.SUCCESS])[0]
            self._emit(SendCompleted(event.t_ns, self.qpn, message.wr_id, status, message.length_bytes))

    def on_received(self, event: ReceiveCompleted) -> None:
        """Handle the arrival of one part of a message."""
        self._received[event.qpn - self.qpn].append(event)
        while all(self._received):
            parts = [part.popleft() for part in self._received]
            length = sum(part.length_bytes for part in parts)
            self._emit(ReceiveCompleted(event.t_ns, self.qpn, parts[0].imm, length, self._rqmsn))
            self._rqmsn = self._rqmsn + 1 & 0xFFFF

    def on_error(self, event: QpError) -> bool:
        """Handle the failure of a queue pair. Return True if it is the connection's first failure."""
        if self.failed:
            return False
        self.failed = True
        self._emit(QpError(event.t_ns, self.qpn, event.status, event.detail))
        return True


_TURN = 8


class RoceQueuePair(QueuePair):
    """One queue pair of a RoCEv2 endpoint."""

    def __init__(self, qpn: int, requester: Requester, responder: Responder, connection: Connection) -> None:
        super().__init__(qpn, _TURN)
        self.requester = requester
        self.responder = responder
        self.connection = connection
        self.path_ev = 0
        """EV of the queue pair's path. Counters identify the path by this EV."""

    def has_data(self) -> bool:
        """Return whether there is a packet to send. The rate limit may still delay this packet."""
        return self.requester.has_data()

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` would append a frame now, if the port is free."""
        return self.requester.ready(now_ns)

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`; return their number."""
        if free_ports is not None and self.requester.port not in free_ports:
            return 0
        return self.requester.emit_frames(now_ns, out, limit)

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append up to about `limit` ACKs, NAKs and CNPs to `out`. Return True if some are left."""
        if free_ports is None or self.requester.port in free_ports:
            self.responder.emit_frames(out, limit)
        return self.responder.answering

    def next_timer(self, now_ns: int) -> int | None:
        """Return when `handle_timer` must be called; None: never."""
        return self.requester.next_timer(now_ns, self.queued)

    def timer_drifts(self) -> bool:
        """Return True if the rate may rise, so that the time of `next_timer` becomes earlier."""
        limiter = self.requester.limiter
        return limiter is not None and limiter.limiting and not self.queued and self.requester.has_data()

    def handle_timer(self, now_ns: int) -> None:
        """Handle timers that have run out: retry after a timeout, or end an RNR wait."""
        self.requester.handle_timer(now_ns)
