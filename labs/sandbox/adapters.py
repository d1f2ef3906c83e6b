"""Adapters between the calls, which carry plain data, and the classes that students write."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

FIELDS = ("value", "port", "sent", "acked", "lost", "trimmed", "ecn_marked")
"""An EV as a path policy sees it; the fields in the order in which they are sent."""
_OPTIONAL = ("on_sack", "on_trim", "on_loss")


class EvView:
    """An EV as a path policy sees it."""

    __slots__ = FIELDS

    def update(self, row: Sequence[int]) -> None:
        """Take the fields."""
        for name, value in zip(FIELDS, row, strict=True):
            setattr(self, name, value)


class Policy:
    """A path policy that is called with rows of numbers instead of EVs."""

    def __init__(self, made: Callable[[random.Random], Any], seed: int) -> None:
        from mrclab.hosts.mrc.evs.policy import PathPolicy

        self._policy = made(random.Random(seed))
        self._evs: dict[int, EvView] = {}
        base = [getattr(PathPolicy, name) for name in _OPTIONAL]
        own = [getattr(type(self._policy), name, None) for name in _OPTIONAL]
        self.methods = [
            name for name, mine, given in zip(_OPTIONAL, own, base, strict=True) if mine not in (None, given)
        ]

    def update(self, rows: Sequence[Sequence[int]]) -> None:
        """Note the changes of EVs."""
        for row in rows:
            self._evs.setdefault(row[0], EvView()).update(row)

    def choose(self, now_ns: int, offered: Sequence[int]) -> int:
        """Return the number of the EV that the policy chose."""
        chosen: int = self._policy.choose(now_ns, [self._evs[value] for value in offered]).value
        return chosen

    def on_sack(self, now_ns: int, value: int, marked: bool) -> None:
        """Note an acknowledgement."""
        self._policy.on_sack(now_ns, self._evs[value], marked)

    def on_trim(self, now_ns: int, value: int) -> None:
        """Note a trimmed packet."""
        self._policy.on_trim(now_ns, self._evs[value])

    def on_loss(self, now_ns: int, value: int) -> None:
        """Note a lost packet."""
        self._policy.on_loss(now_ns, self._evs[value])


class Detector:
    """A loss detector that is called with lists instead of sets."""

    def __init__(self, made: Callable[[int, int], Any], window_ns: int, timeout_ns: int) -> None:
        self._detector = made(window_ns, timeout_ns)

    def on_sent(self, psn: int, now_ns: int) -> None:
        """Note a transmission."""
        self._detector.on_sent(psn, now_ns)

    def on_sack(self, cumulative: int, above: Sequence[int], now_ns: int) -> list[Any]:
        """Return the packets to send again."""
        return list(self._detector.on_sack(cumulative, frozenset(above), now_ns))

    def timer_ns(self) -> Any:
        """Return when to call `on_timer`."""
        return self._detector.timer_ns()

    def on_timer(self, now_ns: int) -> list[Any]:
        """Return the packets to send again."""
        return list(self._detector.on_timer(now_ns))


def arrays(args: Sequence[Any]) -> list[Any]:
    """Return the lists among arguments as arrays of numpy."""
    import numpy as np

    return [np.array(arg) if isinstance(arg, list) else arg for arg in args]


ADAPTERS: dict[str, Callable[..., Any]] = {"policy": Policy, "detector": Detector}
