"""The interface of a queue pair to the scheduler, for any transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.frames import Outgoing

MOST_ANSWERS: Final = 256
"""Answers of one kind that wait at most. If a peer asks for more, the oldest are dropped; that is repaired as
the loss of an answer on its way is."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuePair:
    """A sender and a receiver, their state in the scheduler, and the methods that the scheduler calls."""

    def __init__(self, qpn: int, turn: int) -> None:
        self.qpn = qpn
        self.peers: frozenset[bytes] = frozenset()
        """Addresses of the peer's ports."""
        self.connected = False
        self.turn = turn
        """Frames to hand out before the next queue pair has its turn."""
        self.sharing: SharedWindow | None = None
        """The window that this queue pair shares with others."""
        # Kept by the scheduler alone.
        self.queued = False
        """In the list of queue pairs that may have something to send."""
        self.parked = False
        """Waiting for room in its shared window; it may be queued as well, for its probes."""
        self.touched = False
        """Something happened since its timer was last set: the timer may be due earlier."""
        self.timed_ns = -1
        """Time of its valid entry among the timers; -1 for none."""

    def has_data(self) -> bool:
        """Return whether there is a packet to send that only a window or a rate may hold back."""
        return False

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` might produce something now."""
        return False

    def wants_to_probe(self) -> bool:
        """Return whether there is something to send that no window holds back."""
        return False

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`, only probes while parked; return how many."""
        return 0

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append answers to `out`, up to about `limit` frames; return whether some remain."""
        return False

    def budget_bytes(self, now_ns: int) -> int:
        """Return how much its window, shared or not, has room for."""
        return 0

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when time alone makes room in its window; None when only an acknowledgement can."""
        return None

    def next_timer(self, now_ns: int) -> int | None:
        """Return when `handle_timer` wants to be called; None for never.

        That is now for one that is not queued and may send by now because time has passed: nothing else may
        ever come to wake it.
        """
        return None

    def timer_drifts(self) -> bool:
        """Return whether `next_timer` may come nearer though nothing happens to the queue pair."""
        return False

    def handle_timer(self, now_ns: int) -> None:
        """Do the work that is due; harmless if there is none."""


class SharedWindow:
    """The queue pairs that wait for room in one congestion window, in the order of their turns."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[QueuePair] = deque()
