"""When a routing protocol notices that a link has died, or is back: timers as a schedule, without a clock.

Neighbours send each other hellos, every so often; a link counts as dead when none has come over it for the
hold time. That is how BFD does it (RFC 5880: interval times detection multiplier) and BGP (RFC 4271: hold
time, with keepalives every third of it), and what makes both slow is that time. A cut falls somewhere
between two hellos, so it takes from one interval less than the hold time up to all of it until it is noticed.

The baseline `ecmp+controller` is this schedule and a controller that takes a link out of its groups at that
time. What a real fabric adds, the spreading of news from router to router, is left out: its recovery is
the best that such a protocol could do.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Detection:
    """How neighbours watch a link. All times in ns."""

    hold_ns: int
    """Without a hello for so long the link is dead."""
    interval_ns: int
    """From one hello to the next."""
    restore_ns: int = 0
    """From the first hello of a link that is back until routes use it again."""

    def __post_init__(self) -> None:
        if not 0 < self.interval_ns <= self.hold_ns:
            raise ValueError(
                f"hellos every {self.interval_ns} ns do not keep a hold time of {self.hold_ns} ns up"
            )
        if self.restore_ns < 0:
            raise ValueError("restore_ns must not be negative")

    @classmethod
    def within(cls, hold_ns: int) -> Detection:
        """Return a hold time with a hello every third of it, as in BGP [RFC 4271, section 4.4]."""
        return cls(hold_ns, max(1, hold_ns // 3))


class Change(NamedTuple):
    """A change that routes have to follow: a link that is gone or back."""

    at_ns: int
    link: str
    up: bool


@dataclass(slots=True)
class _Watched:
    """A link that was cut, until routes use it again."""

    heard_ns: int
    """When the last hello came."""
    up_ns: int | None = None
    """When it was restored; None while it is cut."""
    withdrawn: bool = False


class DetectionSchedule:
    """Which links of a fabric count as dead when: from cuts and repairs to the moments to act on them.

    Times must not go back. ``rng`` draws where each link's hellos fall, once per link: the same seed gives
    the same delays.
    """

    def __init__(self, detection: Detection, rng: random.Random) -> None:
        self._detection = detection
        self._rng = rng
        self._phases: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._noticed: list[Change] = []

    def cut(self, link: str, now_ns: int, *, carrier: bool = True) -> None:
        """No hello comes over a link any more. One that has lost its carrier, too, counts as dead at once."""
        self._advance(now_ns)
        watched = self._watched.get(link)
        last = self._last_hello(link, now_ns)
        if not carrier:
            last = now_ns - self._detection.hold_ns
        if watched is None:
            self._watched[link] = _Watched(last)
        elif watched.up_ns is not None:
            if last >= watched.up_ns or not carrier:
                watched.heard_ns = last
            watched.up_ns = None

    def mended(self, link: str, now_ns: int) -> None:
        """Note that hellos come over a link again."""
        self._advance(now_ns)
        watched = self._watched.get(link)
        if watched is not None and watched.up_ns is None:
            watched.up_ns = now_ns

    def next_ns(self) -> int | None:
        """When ``due`` may have something to say next; None while nothing is to be noticed."""
        if self._noticed:
            return self._noticed[0].at_ns
        found = (self._next_of(link, watched) for link, watched in self._watched.items())
        return min((at for at in found if at is not None), default=None)

    def due(self, now_ns: int) -> list[Change]:
        """Return the changes noticed by now and not yet returned, in order of time."""
        self._advance(now_ns)
        changes, self._noticed = self._noticed, []
        return changes

    def _last_hello(self, link: str, now_ns: int) -> int:
        interval = self._detection.interval_ns
        if link not in self._phases:
            self._phases[link] = self._rng.randrange(interval)
        return now_ns - (now_ns - self._phases[link]) % interval

    def _first_hello(self, link: str, now_ns: int) -> int:
        last = self._last_hello(link, now_ns)
        return last if last == now_ns else last + self._detection.interval_ns

    def _next_of(self, link: str, watched: _Watched) -> int | None:
        """When something becomes of a link: a hello in time, the end of its hold time, or its return."""
        hello = None if watched.up_ns is None else self._first_hello(link, watched.up_ns)
        if watched.withdrawn:
            return None if hello is None else hello + self._detection.restore_ns
        dead = watched.heard_ns + self._detection.hold_ns
        return dead if hello is None or hello > dead else hello

    def _advance(self, now_ns: int) -> None:
        while True:
            ripe = [
                (at, link)
                for link, watched in self._watched.items()
                if (at := self._next_of(link, watched)) is not None and at <= now_ns
            ]
            if not ripe:
                return
            at, link = min(ripe)
            watched = self._watched[link]
            if watched.withdrawn:
                self._noticed.append(Change(at, link, True))
                del self._watched[link]
            elif at - watched.heard_ns >= self._detection.hold_ns and not self._saved(link, watched, at):
                self._noticed.append(Change(at, link, False))
                watched.withdrawn = True
            else:
                del self._watched[link]

    def _saved(self, link: str, watched: _Watched, at_ns: int) -> bool:
        """Return true if a hello came at the last moment."""
        return watched.up_ns is not None and self._first_hello(link, watched.up_ns) == at_ns
