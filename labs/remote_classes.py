"""Students' classes with the interface that a simulation expects. They run in a process without rights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from mrclab.hosts.mrc.evs.ev import Ev, PathPolicy
from mrclab.labs.checks import Hint, RemoteModule
from mrclab.labs.sandbox.child import FIELDS


def policy_class(module: RemoteModule, name: str) -> type[PathPolicy]:
    """Return a path policy class. For each choice, a policy calls an object of a student's class ``name``."""

    class Remote(_RemotePolicy):
        def __init__(self, rng: random.Random) -> None:
            super().__init__(rng)
            self.start(module, name)

    return Remote


class _RemotePolicy(PathPolicy):
    """Passes the calls of a policy to the student's process. Only changed counters of EVs are passed on."""

    def start(self, module: RemoteModule, name: str) -> None:
        self._name = name
        self._policy = module.make(name, "policy", self.rng.getrandbits(32))
        self._told: dict[int, tuple[int, ...]] = {}

    def _tell(self, evs: Sequence[Ev]) -> None:
        changed = []
        for ev in evs:
            row = tuple(getattr(ev, field) for field in FIELDS)
            if self._told.get(ev.value) != row:
                self._told[ev.value] = row
                changed.append(row)
        if changed:
            self._policy.later("update", changed)

    def choose(self, now_ns: int, evs: Sequence[Ev]) -> Ev:
        """Return the EV that the student's policy chose. Raise Hint if that EV was not offered."""
        self._tell(evs)
        value = self._policy.call("choose", now_ns, [ev.value for ev in evs])
        for ev in evs:
            if type(value) is int and ev.value == value:
                return ev
        raise Hint(f"{self._name}.choose returned something that is none of the EVs that it was offered.")

    def on_sack(self, now_ns: int, ev: Ev, marked: bool) -> None:
        """Call the student's ``on_sack``, if the class has this method."""
        self._note("on_sack", now_ns, ev, marked)

    def on_trim(self, now_ns: int, ev: Ev) -> None:
        """Call the student's ``on_trim``, if the class has this method."""
        self._note("on_trim", now_ns, ev)

    def on_loss(self, now_ns: int, ev: Ev) -> None:
        """Call the student's ``on_loss``, if the class has this method."""
        self._note("on_loss", now_ns, ev)

    def _note(self, method: str, now_ns: int, ev: Ev, *more: bool) -> None:
        if method in self._policy.methods:
            self._tell([ev])
            self._policy.later(method, now_ns, ev.value, *more)


class RemoteDetector:
    """Passes calls to a student's loss detector (see `mrclab.labs.repairing.Detector`)."""

    def __init__(self, module: RemoteModule, window_ns: int, timeout_ns: int) -> None:
        self._detector = module.make("LossDetector", "detector", window_ns, timeout_ns)

    def on_sent(self, psn: int, now_ns: int) -> None:
        """Report a transmission to the detector."""
        self._detector.later("on_sent", psn, now_ns)

    def on_sack(self, cumulative: int, above: AbstractSet[int], now_ns: int) -> Sequence[int]:
        """Return the packets to send again."""
        return _packets("on_sack", self._detector.call("on_sack", cumulative, sorted(above), now_ns))

    def timer_ns(self) -> int | None:
        """Return the time at which to call `on_timer`. Raise Hint if it is not a time."""
        found = self._detector.call("timer_ns")
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or found != found:
            raise Hint("timer_ns returned something that is neither a time in ns nor None.")
        return int(min(found, 1 << 62))

    def on_timer(self, now_ns: int) -> Sequence[int]:
        """Return the packets to send again."""
        return _packets("on_timer", self._detector.call("on_timer", now_ns))


def _packets(method: str, found: Any) -> list[int]:
    if not isinstance(found, list) or any(type(psn) is not int for psn in found):
        raise Hint(f"{method} returned something that is no list of packets' numbers.")
    return found
