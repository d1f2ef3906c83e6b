"""Virtual time: a queue of events, in picoseconds.

Events that are near lie in a wheel of short slots, which costs one append each; the few that are further away
than the wheel reaches wait in a heap. Two events at one moment happen in the order in which they were
scheduled, for any width of a slot, so a run is the same on every machine.

Times are `i64`: compiled, they are machine integers. They last for 106 days.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from operator import attrgetter
from typing import Final

from mypy_extensions import i64, mypyc_attr

PS_PER_NS: Final = 1000
NEVER_PS: Final = 1 << 60
"""Later than anything: 13 days."""
_SLOTS: Final = 1 << 13
_MASK: Final = _SLOTS - 1
_FEW: Final = 16
"""So many events of a slot are sorted by insertion."""
_at_ps: Final = attrgetter("at_ps")


@mypyc_attr(allow_interpreted_subclasses=True)
class Event:
    """Something that happens at one moment. It may be scheduled again once it has happened."""

    __slots__ = ("at_ps",)

    def __init__(self) -> None:
        self.at_ps: i64 = 0

    def happen(self) -> None:
        """Do it, now."""


class Call(Event):
    """An event that calls a function."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__()
        self._function = function

    def happen(self) -> None:
        """Call the function."""
        self._function()


class Clock:
    """Virtual time and the events that it brings."""

    def __init__(self, slot_ps: int = 1024) -> None:
        """Start at time 0.

        `slot_ps`, rounded down to a power of two, should be a small part of the time between two packets on
        one link. It changes how fast a run is, and nothing else.
        """
        self.now_ps: i64 = 0
        self._shift: i64 = max(slot_ps, 1).bit_length() - 1
        self._slots: list[list[Event]] = [[] for _ in range(_SLOTS)]
        self._in_wheel: i64 = 0
        self._far: list[tuple[int, int, Event]] = []
        """A heap of (time, order of scheduling, event)."""
        self._far_count = 0
        self._slot: i64 = 0
        """The slot that is open; everything before it has happened."""
        self._open: list[Event] = []
        """Its events in order, of which `_next` comes next."""
        self._next: i64 = 0
        self.events: i64 = 0
        """How many have happened."""
        self._stopped = False

    @property
    def now_ns(self) -> int:
        """The time in whole nanoseconds, as endpoints take it."""
        return self.now_ps // PS_PER_NS

    def at(self, at_ps: i64, event: Event) -> None:
        """Let an event happen at a time, which must not have passed."""
        event.at_ps = at_ps
        ahead = (at_ps >> self._shift) - self._slot
        if 0 < ahead < _SLOTS:
            self._slots[(self._slot + ahead) & _MASK].append(event)
            self._in_wheel += 1
        elif ahead > 0:
            self._far_count += 1
            heappush(self._far, (int(at_ps), self._far_count, event))
        else:
            self._put_into_open(at_ps, event)

    def call_at(self, at_ps: int, function: Callable[[], None]) -> None:
        """Call a function at a time."""
        self.at(min(at_ps, NEVER_PS), Call(function))

    def stop(self) -> None:
        """Return from `run` after the present event."""
        self._stopped = True

    def run(self, until_ps: int) -> None:
        """Let everything happen up to a time, included, or until `stop` is called."""
        self._run(min(until_ps, NEVER_PS))

    def _run(self, until_ps: i64) -> None:
        self._stopped = False
        while not self._stopped:
            if self._next >= len(self._open):
                if not self._open_next(until_ps):
                    break
                continue
            event = self._open[self._next]
            if event.at_ps > until_ps:
                break
            self._next += 1
            self.events += 1
            self.now_ps = event.at_ps
            event.happen()
        if not self._stopped and until_ps > self.now_ps:
            self.now_ps = until_ps

    def _put_into_open(self, at_ps: i64, event: Event) -> None:
        """Put an event into the open slot, behind all events that are not later."""
        if at_ps < self.now_ps:
            raise ValueError(f"an event at {at_ps} ps, which is over: it is {self.now_ps} ps")
        events = self._open
        at: i64 = len(events)
        while at > self._next and events[at - 1].at_ps > at_ps:
            at -= 1
        events.insert(int(at), event)

    def _open_next(self, until_ps: i64) -> bool:
        """Open the next slot that has events, if it begins by `until_ps`; return whether there is one."""
        last = until_ps >> self._shift
        far: i64 = last + 1
        if self._far:
            far = self._far[0][0]
            far >>= self._shift
        stop = far if far < last else last
        slot = self._slot + 1
        if not self._in_wheel and slot < stop:
            slot = stop
        while slot < stop and not self._slots[slot & _MASK]:
            slot += 1
        if slot > last or (slot != far and not self._slots[slot & _MASK]):
            return False
        used = self._open
        used.clear()
        self._slot = slot
        self._next = 0
        found = self._slots[slot & _MASK]
        self._slots[slot & _MASK] = used
        self._in_wheel -= len(found)
        if slot == far:
            found = self._with_far(slot, found)
        _sort(found)
        self._open = found
        return True

    def _with_far(self, slot: i64, near: list[Event]) -> list[Event]:
        """Return the events of a slot with those from the heap, which were scheduled before all others."""
        found: list[Event] = []
        far = self._far
        end_ps = int((slot + 1) << self._shift)
        while far and far[0][0] < end_ps:
            found.append(heappop(far)[2])
        return found + near


def _sort(events: list[Event]) -> None:
    """Sort events by time; those of one time stay in their order."""
    count = len(events)
    if count > _FEW:
        events.sort(key=_at_ps)
        return
    for number in range(1, count):
        event = events[number]
        at_ps = event.at_ps
        at: i64 = number
        while at > 0 and events[at - 1].at_ps > at_ps:
            events[at] = events[at - 1]
            at -= 1
        if at < number:
            events[at] = event
