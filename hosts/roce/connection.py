"""A connection as applications see it: messages striped over one queue pair or several.

Every message goes to every queue pair, each carrying its part, as NCCL does with several QPs per connection.
A message is there when each queue pair has delivered its part of it; queue pairs deliver in order, so parts
need no numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mrclab.hosts.rdma.events import Event, QpError, ReceiveCompleted, SendCompleted, Status


class Posted(NamedTuple):
    """A message under way."""

    wr_id: int
    length_bytes: int


def stripes(length_bytes: int, count: int, alignment_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each of `count` parts: equal but for alignment, the last ones maybe empty."""
    size = -(-length_bytes // count)
    size = -(-size // alignment_bytes) * alignment_bytes if count > 1 else size
    for number in range(count):
        yield min(number * size, length_bytes), min((number + 1) * size, length_bytes)


class Connection:
    """Joins the completions of the queue pairs `qpn` to `qpn` + `count` - 1 into those of one connection."""

    def __init__(self, qpn: int, count: int, emit: Callable[[Event], None]) -> None:
        self.qpn = qpn
        self._emit = emit
        self._posted: deque[Posted] = deque()
        self._sent: tuple[deque[Status], ...] = tuple(deque() for _ in range(count))
        self._received: tuple[deque[ReceiveCompleted], ...] = tuple(deque() for _ in range(count))
        self._rqmsn = 0
        self.failed = False

    def post(self, wr_id: int, length_bytes: int) -> None:
        """Note a message that is about to be posted on every queue pair."""
        self._posted.append(Posted(wr_id, length_bytes))

    def on_sent(self, event: SendCompleted) -> None:
        """Take in the completion of a part."""
        self._sent[event.qpn - self.qpn].append(event.status)
        while self._posted and all(self._sent):
            statuses = [part.popleft() for part in self._sent]
            message = self._posted.popleft()
            bad = [status for status in statuses if status is not Status.SUCCESS]
            # The cause is more useful to report than its consequence.
            cause = [status for status in bad if status is not Status.FLUSHED]
            status = (cause or bad or [Status.SUCCESS])[0]
            self._emit(SendCompleted(event.t_ns, self.qpn, message.wr_id, status, message.length_bytes))

    def on_received(self, event: ReceiveCompleted) -> None:
        """Take in the arrival of a part."""
        self._received[event.qpn - self.qpn].append(event)
        while all(self._received):
            parts = [part.popleft() for part in self._received]
            length = sum(part.length_bytes for part in parts)
            self._emit(ReceiveCompleted(event.t_ns, self.qpn, parts[0].imm, length, self._rqmsn))
            self._rqmsn = self._rqmsn + 1 & 0xFFFF

    def on_error(self, event: QpError) -> bool:
        """Take in the failure of a queue pair; return whether it is the connection's first."""
        if self.failed:
            return False
        self.failed = True
        self._emit(QpError(event.t_ns, self.qpn, event.status, event.detail))
        return True
