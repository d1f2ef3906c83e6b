"""Compute the times at which a routing protocol notices a dead or a restored link, without a clock.

Neighbours send each other hellos at a fixed interval. If no hello arrives for the hold time, the link counts
as dead. BFD (RFC 5880: hold time = interval times detection multiplier) and BGP (RFC 4271: three keepalives
in each hold time) work in this way. The hold time begins with the last hello before the failure. So the time
from the failure until the link counts as dead is the hold time, or up to one interval less.

The baseline `ecmp+controller` consists of these detection times and a controller. When a link counts as dead,
the controller removes the link from the switches' groups. In a real fabric each router must also report the
dead link to other routers. The times here do not include these reports: a real protocol cannot be faster.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Detection:
    """How neighbours check a link. All times are in ns."""

    hold_ns: int
    """After this time without a hello the link counts as dead."""
    interval_ns: int
    """The time between two hellos."""
    restore_ns: int = 0
    """The time from the first hello of a restored link until routes use the link again."""

    def __post_init__(self) -> None:
        if not 0 < self.interval_ns <= self.hold_ns:
            raise ValueError(
                f"hellos every {self.interval_ns} ns do not keep a hold time of {self.hold_ns} ns up"
            )
        if self.restore_ns < 0:
            raise ValueError("restore_ns must not be negative")

    @classmethod
    def within(cls, hold_ns: int) -> Detection:
        """Return a Detection with three hellos in each hold time, as in BGP [RFC 4271, section 4.4]."""
        return cls(hold_ns, max(1, hold_ns // 3))


class Change(NamedTuple):
    """A change of a link, after which the routes must change: the link is dead, or is up again."""

    at_ns: int
    link: str
    up: bool


@dataclass(slots=True)
class _Watched:
    """The state of a link from its cut until routes use it again."""

    heard_ns: int
    """The time at which the last hello arrived."""
    up_ns: int | None = None
    """The time at which the link was restored; None while the link is cut."""
    withdrawn: bool = False


class DetectionSchedule:
    """The times at which links count as dead or as up again, computed from cuts and repairs.

    ``now_ns`` must not decrease from call to call. ``rng`` draws a random time for each link's first hello.
    """

    def __init__(self, detection: Detection, rng: random.Random) -> None:
        self._detection = detection
        self._rng = rng
        self._phases: dict[str, int] = {}
        self._watched: dict[str, _Watched] = {}
        self._noticed: list[Change] = []

    def cut(self, link: str, now_ns: int, *, carrier: bool = True) -> None:
        """Record that a link carries no hellos any more. A link without carrier counts as dead at once."""
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
        """Record that a link carries hellos again."""
        self._advance(now_ns)
        watched = self._watched.get(link)
        if watched is not None and watched.up_ns is None:
            watched.up_ns = now_ns

    def next_ns(self) -> int | None:
        """Return when ``due`` may return the next change; None if no link is watched."""
        if self._noticed:
            return self._noticed[0].at_ns
        found = (self._next_of(link, watched) for link, watched in self._watched.items())
        return min((at for at in found if at is not None), default=None)

    def due(self, now_ns: int) -> list[Change]:
        """Return the changes noticed up to now that were not returned yet, in order of time."""
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
        """Return the time of the next event of a link.

        The event is a hello, the end of the hold time, or the time from which routes use the link again.
        """
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
        """Return True if a hello arrived exactly when the hold time ended, so that the link is not dead."""
        return watched.up_ns is not None and self._first_hello(link, watched.up_ns) == at_ns
