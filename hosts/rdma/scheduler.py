"""Which queue pair sends next, which timer is due next, and the interface of queue pairs to the scheduler.

A queue pair sends several frames in a turn, because each turn costs time, and the peer answers each burst. A
queue pair that may have something to send is in the list `_sending`. If a queue pair cannot send only because
its shared window is full, the queue pair is *parked*: it waits in the window's list until there is room.

After an event, the queue pair's timer may have changed. The queue pair is only marked as touched. Its timer
is computed when the caller asks for the next timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.rdma.frames import Outgoing

MOST_ANSWERS: Final = 256
"""Largest number of waiting answers of one kind. If a peer requests more, the oldest are dropped. The peer
recovers as if the network had lost these answers."""


@mypyc_attr(allow_interpreted_subclasses=True)
class QueuePair:
    """A sender and a receiver, their state in the scheduler, and the methods that the scheduler calls."""

    def __init__(self, qpn: int, turn: int) -> None:
        self.qpn = qpn
        self.peers: frozenset[bytes] = frozenset()
        """Addresses of the peer's ports."""
        self.connected = False
        self.turn = turn
        """Number of frames that the queue pair may send in one turn."""
        self.sharing: SharedWindow | None = None
        """The window that this queue pair shares with others."""
        # Only the scheduler changes the following fields.
        self.queued = False
        """True: the queue pair is in the scheduler's list `_sending`, as it may have something to send."""
        self.parked = False
        """True: the queue pair waits for room in its shared window. For probes, it may be in `_sending`."""
        self.touched = False
        """True: since the timer was last computed, an event happened. So the timer may be due earlier."""
        self.timed_ns = -1
        """Time of the queue pair's valid timer, ns; -1: none."""

    def has_data(self) -> bool:
        """Return whether a packet waits to be sent, even if window or rate does not allow it now."""
        return False

    def wants_to_send(self, now_ns: int) -> bool:
        """Return whether `emit_frames` might append a frame now."""
        return False

    def wants_to_probe(self) -> bool:
        """Return whether there is a packet to send that no window limits."""
        return False

    def emit_frames(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> int:
        """Append up to `limit` frames to `out`; return their number. Parked queue pairs send only probes."""
        return 0

    def emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> bool:
        """Append answers to `out`, up to about `limit` frames. Return True if some are left."""
        return False

    def budget_bytes(self, now_ns: int) -> int:
        """Return how many bytes the queue pair's window (shared or not) allows now."""
        return 0

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when the window will have room without an ACK; None if only an ACK can make room."""
        return None

    def next_timer(self, now_ns: int) -> int | None:
        """Return when to call `handle_timer`; None: never.

        If the queue pair is not in the list `_sending` but may send now, return the present time. Without
        this timer, perhaps no event would put the queue pair back into the list.
        """
        return None

    def timer_drifts(self) -> bool:
        """Return whether the result of `next_timer` may become earlier without a frame or a call."""
        return False

    def handle_timer(self, now_ns: int) -> None:
        """Handle the timers that have run out."""


class SharedWindow:
    """The queue pairs that wait for room in one congestion window, in the order of their turns."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: deque[QueuePair] = deque()


_DROPPED_AT_ONCE: Final = 64
"""Largest number of removed items that remain at the beginning of the list in `_Turns`."""


class _Turns:
    """The queue pairs in the order of their turns.

    They are in a list and not in a deque, because compiled code reads the first item of a list faster.
    """

    def __init__(self) -> None:
        self._items: list[QueuePair] = []
        self._first = 0
        self.count = 0

    def first(self) -> QueuePair:
        """Return the queue pair whose turn is next."""
        return self._items[self._first]

    def append(self, qp: QueuePair) -> None:
        """Add a queue pair at the end."""
        self._items.append(qp)
        self.count += 1

    def drop_first(self) -> None:
        """Remove the queue pair whose turn is next."""
        self._first += 1
        self.count -= 1
        if self._first > _DROPPED_AT_ONCE or not self.count:
            del self._items[: self._first]
            self._first = 0

    def rotate(self) -> None:
        """Move the first queue pair to the end."""
        if self.count > 1:
            self.append(self.first())
            self.drop_first()

    def remove(self, qp: QueuePair) -> None:
        """Remove a queue pair at any position."""
        left = [other for other in self._items[self._first :] if other is not qp]
        self._items, self._first, self.count = left, 0, len(left)


class Scheduler:
    """The queue pairs of one endpoint: their turns and their timers."""

    def __init__(self, packet_bytes: int) -> None:
        """`packet_bytes` is the room that one more packet needs in a shared window."""
        self._packet_bytes = packet_bytes
        self._answering: list[QueuePair] = []
        self._sending = _Turns()
        self._turn_left = 0
        """Frames that the first queue pair of `_sending` may still send in its turn; 0: a whole turn."""
        self._touched: list[QueuePair] = []
        self._timers: list[tuple[int, int, QueuePair]] = []
        """A heap of times. A timer is never due before the time of its entry, but may be due later.

        An entry is stale if its time is not the queue pair's `timed_ns`.
        """
        self._timer_count = 0

    def answer(self, qp: QueuePair) -> None:
        """Record that a queue pair has answers to send."""
        self._answering.append(qp)

    def forget(self, qp: QueuePair) -> None:
        """Remove a queue pair from all lists."""
        self._answering = [other for other in self._answering if other is not qp]
        self._sending.remove(qp)
        if qp.sharing is not None:
            while qp in qp.sharing.waiting:
                qp.sharing.waiting.remove(qp)
        qp.timed_ns = -1
        qp.connected = False

    # Which queue pair sends next

    def emit(self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> None:
        """Append frames to `out` until it holds about `limit`: answers first, then data and probes."""
        if self._answering:
            self._emit_answers(now_ns, out, limit, free_ports)
        sending = self._sending
        blocked = 0
        while sending.count and len(out) < limit and blocked < sending.count:
            qp = sending.first()
            turn = self._turn_left or qp.turn
            self._turn_left = 0
            room = limit - len(out)
            if turn < room:
                room = turn
            count = qp.emit_frames(now_ns, out, room, free_ports)
            if not qp.touched:
                self._touch(qp)
            if qp.wants_to_probe() if qp.parked else qp.wants_to_send(now_ns):
                if count == room < turn:
                    self._turn_left = turn - count
                else:
                    sending.rotate()
                blocked = 0 if count else blocked + 1
                if count or free_ports is not None:
                    continue
                # All planes of this queue pair are down, but another queue pair may have a plane that is up.
            else:
                sending.drop_first()
                if count:
                    blocked = 0
                qp.queued = False
                if qp.has_data():
                    self._park(qp, first=count == 0)
                    continue
            # This queue pair leaves room in its window: release the next waiting queue pair.
            sharing = qp.sharing
            if sharing is not None and sharing.waiting:
                self.release(now_ns, sharing)

    def _emit_answers(
        self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None
    ) -> None:
        answering = self._answering
        turns, done = len(answering), 0
        while done < turns and len(out) < limit:
            qp = answering[done]
            done += 1
            if qp.emit_answers(now_ns, out, limit - len(out), free_ports):
                answering.append(qp)
        if done == len(answering):
            self._answering = []
        else:
            del answering[:done]

    def wake(self, now_ns: int, qp: QueuePair) -> None:
        """Handle an event after which a queue pair may be able to send.

        The event may also have made room in a shared window, so that other queue pairs can send.
        """
        if not qp.touched:
            self._touch(qp)
        sharing = qp.sharing
        if not qp.queued:
            if sharing is not None and sharing.waiting:
                # Other queue pairs wait for the same window, so this queue pair waits behind them.
                self._park(qp)
            if qp.wants_to_probe() if qp.parked else qp.wants_to_send(now_ns):
                qp.queued = True
                self._sending.append(qp)
            else:
                self._park(qp)
        if sharing is not None and sharing.waiting:
            self.release(now_ns, sharing)

    def _park(self, qp: QueuePair, *, first: bool = False) -> None:
        """Park a queue pair if its full shared window is the only reason why it cannot send.

        `first`: put the queue pair at the head of the list, because it could send nothing in its turn.
        """
        sharing = qp.sharing
        if sharing is not None and not qp.parked and qp.has_data():
            qp.parked = True
            if first:
                sharing.waiting.appendleft(qp)
            else:
                sharing.waiting.append(qp)

    def release(self, now_ns: int, sharing: SharedWindow) -> None:
        """Release one waiting queue pair for each packet that their shared window has room for.

        If the window can get room without an acknowledgement, set a timer for the first queue pair that still
        waits.
        """
        waiting = sharing.waiting
        if not waiting:
            return
        budget = waiting[0].budget_bytes(now_ns)
        while waiting:
            qp = waiting[0]
            if qp.has_data():
                if budget <= 0:
                    if not qp.touched and qp.next_send_ns(now_ns) is not None:
                        self._touch(qp)
                    break
                budget -= self._packet_bytes
                if not qp.queued:
                    qp.queued = True
                    self._sending.append(qp)
            # A queue pair without data needs no room in the window. It leaves this list without a turn.
            qp.parked = False
            waiting.popleft()

    # Timers

    def _touch(self, qp: QueuePair) -> None:
        qp.touched = True
        self._touched.append(qp)

    def next_timer(self, now_ns: int) -> int | None:
        """Return when the next timer of a queue pair is due; None if no timer is set."""
        self._note_touched(now_ns)
        timers = self._timers
        while timers:
            at, _, qp = timers[0]
            due = qp.next_timer(now_ns) if qp.timed_ns == at else None
            if due == at:
                return at
            heappop(timers)
            if qp.timed_ns == at:
                qp.timed_ns = -1
                if due is not None:
                    self._set_timer(qp, due)
        return None

    def due(self, now_ns: int) -> list[QueuePair]:
        """Remove and return the queue pairs whose timers are due."""
        self._note_touched(now_ns)
        found: list[QueuePair] = []
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            at, _, qp = heappop(timers)
            if qp.timed_ns != at:
                continue
            qp.timed_ns = -1
            later = qp.next_timer(now_ns)
            if later is None or later <= now_ns:
                found.append(qp)
            else:
                self._set_timer(qp, later)
        return found

    def _note_touched(self, now_ns: int) -> None:
        """Set the timers of touched queue pairs that are due earlier. Only `due` sets a later time."""
        if not self._touched:
            return
        drifting: list[QueuePair] = []
        for qp in self._touched:
            qp.touched = False
            if qp.connected:
                due = qp.next_timer(now_ns)
                if due is not None and not 0 <= qp.timed_ns <= due:
                    self._set_timer(qp, due)
                if qp.timer_drifts():
                    qp.touched = True
                    drifting.append(qp)
        self._touched = drifting

    def _set_timer(self, qp: QueuePair, at: int) -> None:
        self._timer_count += 1
        qp.timed_ns = at
        heappush(self._timers, (at, self._timer_count, qp))
