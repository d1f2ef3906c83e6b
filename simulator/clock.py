"""Virtual time: a queue of events, in picoseconds.

Near events are in a wheel of short slots. Each slot is a linked chain of events. Events beyond the wheel wait
in a heap. Two events with the same time happen in the order in which they were scheduled. The width of a slot
does not change this order, so a run is the same on every machine.

Times have the type `i64`, which mypyc compiles to machine integers. An `i64` can count 106 days.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import i64, mypyc_attr

PS_PER_NS: Final = 1000
NEVER_PS: Final = 1 << 60
"""A time later than all events: 13 days."""
LEAST_SLOTS: Final = 1 << 13


@mypyc_attr(allow_interpreted_subclasses=True)
class Event:
    """An action at one time. An event may be scheduled again after it has happened."""

    __slots__ = ("after", "at_ps")

    def __init__(self) -> None:
        self.at_ps: i64 = 0
        self.after: Event | None = None
        """The next event in the same chain."""

    def happen(self) -> None:
        """Do the action of this event."""


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
    """Virtual time and its events."""

    def __init__(self, slot_ps: int = 1024, slots: int = LEAST_SLOTS) -> None:
        """Start at time 0.

        `slot_ps` should be a time in which a few events happen; it is rounded down to a power of two. The
        wheel of `slots` slots (rounded up to a power of two) should be longer than the delays of links. Both
        parameters change only the speed of a run.
        """
        self.now_ps: i64 = 0
        self._shift: i64 = max(slot_ps, 1).bit_length() - 1
        count = 1 << (max(slots, 1) - 1).bit_length()
        self._slots: list[Event | None] = [None] * count
        """The chain of each slot. Its first event is the event that was scheduled last."""
        self._count: i64 = count
        self._mask: i64 = count - 1
        self._in_wheel: i64 = 0
        self._far: list[tuple[int, int, Event]] = []
        """A heap of (time, order of scheduling, event)."""
        self._far_count = 0
        self._slot: i64 = 0
        """The number of the open slot, whose events happen now. All events of earlier slots have happened."""
        self._open: Event | None = None
        """The remaining events of the open slot, as a chain in order."""
        self.events: i64 = 0
        """The number of events that have happened."""
        self._stopped = False

    @property
    def now_ns(self) -> int:
        """The time in whole nanoseconds, the unit of endpoints."""
        return self.now_ps // PS_PER_NS

    def at(self, at_ps: i64, event: Event) -> None:
        """Schedule an event at a time that has not passed."""
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
            self._put_into_open(event, at_ps + 1)  # after all events already scheduled for this time

    def call_at(self, at_ps: int, function: Callable[[], None]) -> None:
        """Call a function at a time."""
        self.at(min(at_ps, NEVER_PS), Call(function))

    def stop(self) -> None:
        """Return from `run` after the present event."""
        self._stopped = True

    def run(self, until_ps: int) -> None:
        """Run all events up to and including a time, or until `stop` is called."""
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
        """Put an event into the open slot, in front of the first event at `before_ps` or later."""
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
        """Open the next slot that has events and begins by `until_ps`. Return False if there is none."""
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
        """Open the chain of a slot. Sort its events by time, then by the order of scheduling."""
        self._open = None
        event = latest
        while event is not None:
            earlier = event.after
            self._put_into_open(event, event.at_ps)
            self._in_wheel -= 1
            event = earlier

    def _add_far(self, slot: i64) -> None:
        """Add the slot's events from the heap. At equal times, heap events come before wheel events."""
        found: list[Event] = []
        far = self._far
        end_ps = int((slot + 1) << self._shift)
        while far and far[0][0] < end_ps:
            found.append(heappop(far)[2])
        for event in reversed(found):
            self._put_into_open(event, event.at_ps)
