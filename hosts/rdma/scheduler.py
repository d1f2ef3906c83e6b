"""Which queue pair sends next, and which one's timer is due next.

Queue pairs take turns of several frames, since each turn costs cache misses and each burst a separate answer.
A queue pair is in the list `_sending` while it may have something to send. One that lacks only room in a
shared window is parked in that window's list instead, and released when there is room.

Timers are kept lazily: an event only marks its queue pair as touched, and the timer is looked up when the
driver needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from heapq import heappop, heappush

from mrclab.hosts.rdma.frames import Outgoing
from mrclab.hosts.rdma.queue_pair import QueuePair, SharedWindow


class Scheduler:
    """The queue pairs of one endpoint, by whose turn it is and by when their timers are due."""

    def __init__(self, packet_bytes: int) -> None:
        """`packet_bytes` is the room in a shared window that one more packet needs."""
        self._packet_bytes = packet_bytes
        self._answering: list[QueuePair] = []
        self._sending: deque[QueuePair] = deque()
        self._turn_left = 0
        """Frames that the first of `_sending` may hand out before it goes to the end; 0 for a whole turn."""
        self._touched: list[QueuePair] = []
        self._timers: list[tuple[int, int, QueuePair]] = []
        """A heap; entries other than a queue pair's `timed_ns` are stale.

        No timer is due before its entry.
        """
        self._timer_count = 0

    def answer(self, qp: QueuePair) -> None:
        """Note that a queue pair has answers to send."""
        self._answering.append(qp)

    def forget(self, qp: QueuePair) -> None:
        """Remove a queue pair from all lists."""
        lists: list[deque[QueuePair] | list[QueuePair]] = [self._answering, self._sending]
        if qp.sharing is not None:
            lists.append(qp.sharing.waiting)
        for waiting in lists:
            while qp in waiting:
                waiting.remove(qp)
        qp.timed_ns = -1
        qp.connected = False

    # Turns

    def emit(self, now_ns: int, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> None:
        """Append frames to `out` until it holds about `limit`: answers first, then data and probes."""
        if self._answering:
            self._emit_answers(out, limit, free_ports)
        sending = self._sending
        blocked = 0
        while sending and len(out) < limit and blocked < len(sending):
            qp = sending[0]
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
                elif len(sending) > 1:
                    sending.append(sending.popleft())
                blocked = 0 if count else blocked + 1
                if count or free_ports is not None:
                    continue
                # All its planes are down; other queue pairs may have some that are up.
            else:
                sending.popleft()
                if count:
                    blocked = 0
                qp.queued = False
                if qp.has_data():
                    self._park(qp, first=count == 0)
                    continue
            # Window is left over: release the next waiting queue pair.
            sharing = qp.sharing
            if sharing is not None and sharing.waiting:
                self.release(now_ns, sharing)

    def _emit_answers(self, out: list[Outgoing], limit: int, free_ports: Collection[int] | None) -> None:
        answering = self._answering
        turns, done = len(answering), 0
        while done < turns and len(out) < limit:
            qp = answering[done]
            done += 1
            if qp.emit_answers(out, limit - len(out), free_ports):
                answering.append(qp)
        if done == len(answering):
            self._answering = []
        else:
            del answering[:done]

    def wake(self, now_ns: int, qp: QueuePair) -> None:
        """Note that something happened to a queue pair: it may send now or later, or let others send."""
        if not qp.touched:
            self._touch(qp)
        sharing = qp.sharing
        if not qp.queued:
            if sharing is not None and sharing.waiting:
                # Room goes by turns: an answer to this one gives it no precedence over the waiting ones.
                self._park(qp)
            if qp.wants_to_probe() if qp.parked else qp.wants_to_send(now_ns):
                qp.queued = True
                self._sending.append(qp)
            else:
                self._park(qp)
        if sharing is not None and sharing.waiting:
            self.release(now_ns, sharing)

    def _park(self, qp: QueuePair, *, first: bool = False) -> None:
        """Let a queue pair wait for room in the window it shares, if that is all it lacks.

        `first` puts it at the head of the list: its turn brought it nothing.
        """
        sharing = qp.sharing
        if sharing is not None and not qp.parked and qp.has_data():
            qp.parked = True
            if first:
                sharing.waiting.appendleft(qp)
            else:
                sharing.waiting.append(qp)

    def release(self, now_ns: int, sharing: SharedWindow) -> None:
        """Let as many waiting queue pairs try again as their shared window has room for packets.

        Where time alone makes room, the first of them gets a timer: when it began to wait, it may have waited
        for an acknowledgement.
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
            # Otherwise an ACK already let it send everything.
            qp.parked = False
            waiting.popleft()

    # Timers

    def _touch(self, qp: QueuePair) -> None:
        """Mark a queue pair that is not marked yet."""
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
        """Take out the queue pairs whose timers are due."""
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
        """Set the timers of touched queue pairs that may be due sooner; one that is due later can wait."""
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
