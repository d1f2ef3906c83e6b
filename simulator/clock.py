"""Virtual time: a queue of events, in picoseconds.

Events that are near lie in a wheel of short slots, each a chain of events; the few that are further away than
the wheel reaches wait in a heap. Two events at one moment happen in the order in which they were scheduled,
for any width of a slot, so a run is the same on every machine.

Times are `i64`: compiled, they are machine integers. They last for 106 days.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64, mypyc_attr

PS_PER_NS: Final = 1000
NEVER_PS: Final = 1 << 60
"""Later than anything: 13 days."""
LEAST_SLOTS: Final = 1 << 13


@mypyc_attr(allow_interpreted_subclasses=True)
class Event:
    """Something that happens at one moment. It may be scheduled again once it has happened."""

    __slots__ = ("after", "at_ps")

    def __init__(self) -> None:
        self.at_ps: i64 = 0
        self.after: Event | None = None
        """The next one in the chain that it waits in."""

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

    def __init__(self, slot_ps: int = 1024, slots: int = LEAST_SLOTS) -> None:
        """Start at time 0.

        `slot_ps`, rounded down to a power of two, should be the time in which a few events happen, and
        `slots`, rounded up to a power of two, should reach further than the delays of links. They change how
        fast a run is, and nothing else.
        """
        self.now_ps: i64 = 0
        self._shift: i64 = max(slot_ps, 1).bit_length() - 1
        count = 1 << (max(slots, 1) - 1).bit_length()
        self._slots: list[Event | None] = [None] * count
        """The chain of each slot, the event that was scheduled last in front."""
        self._count: i64 = count
        self._mask: i64 = count - 1
        self._in_wheel: i64 = 0
        self._far: list[tuple[int, int, Event]] = []
        """A heap of (time, order of scheduling, event)."""
        self._far_count = 0
        self._slot: i64 = 0
        """The slot that is open; everything before it has happened."""
        self._open: Event | None = None
        """Its events that have not happened, a chain in order."""
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
        if 0 < ahead < self._count:
            slot = (self._slot + ahead) & self._mask
            event.after = self._slots[slot]
            self._slots[slot] = event
            self._in_wheel += 1
        elif ahead > 0:
            self._far_count += 1
            heappush(self._far, (int(at_ps), self._far_count, event))
        elif at_ps < self.now_ps:
            raise ValueError(f"an event at {at_ps} ps, which is over: it is {self.now_ps} ps")
        else:
            self._put_into_open(event, at_ps + 1)  # after the earlier events of the same time

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
            event = self._open
            if event is None:
                if not self._open_next(until_ps):
                    break
                continue
            if event.at_ps > until_ps:
                break
            self._open = event.after
            event.after = None
            self.events += 1
            self.now_ps = event.at_ps
            event.happen()
        if not self._stopped and until_ps > self.now_ps:
            self.now_ps = until_ps

    def _put_into_open(self, event: Event, before_ps: i64) -> None:
        """Put an event into the open slot, before all events at this time or later."""
        before = self._open
        if before is None or before.at_ps >= before_ps:
            event.after = before
            self._open = event
            return
        following = before.after
        while following is not None and following.at_ps < before_ps:
            before = following
            following = before.after
        event.after = following
        before.after = event

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
        slots, mask = self._slots, self._mask
        while slot < stop and slots[slot & mask] is None:
            slot += 1
        if slot > last or (slot != far and slots[slot & mask] is None):
            return False
        self._slot = slot
        found = slots[slot & mask]
        slots[slot & mask] = None
        self._open_chain(found)
        if slot == far:
            self._add_far(slot)
        return True

    def _open_chain(self, latest: Event | None) -> None:
        """Open a slot's chain: sort it by time, those of one time by when they were scheduled."""
        self._open = None
        event = latest
        while event is not None:
            earlier = event.after
            self._put_into_open(event, event.at_ps)
            self._in_wheel -= 1
            event = earlier

    def _add_far(self, slot: i64) -> None:
        """Add the events of the heap to the slot that is open: they were scheduled before all others."""
        found: list[Event] = []
        far = self._far
        end_ps = int((slot + 1) << self._shift)
        while far and far[0][0] < end_ps:
            found.append(heappop(far)[2])
        for event in reversed(found):
            self._put_into_open(event, event.at_ps)
