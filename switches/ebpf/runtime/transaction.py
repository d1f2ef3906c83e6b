"""Transactions: map updates that are planned, and how to undo them in the server's view."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Change:
    """One map update (`value` None: a removal).

    `current` returns the value that the map should hold for this key at the time of the call, so that an
    update undone in the server's view can be undone in the map too.
    """

    map: int
    key: bytes
    value: bytes | None
    current: Callable[[], bytes | None]


@dataclass
class Transaction:
    """The changes of one update; the server's view has them already."""

    changes: list[Change] = field(default_factory=list)
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def change(
        self, map_index: int, key: bytes, value: bytes | None, current: Callable[[], bytes | None]
    ) -> None:
        """Add a map update."""
        self.changes.append(Change(map_index, key, value, current))

    def on_undo(self, action: Callable[[], object]) -> None:
        """Register how to undo the last change of the server's view."""
        self._undo.append(action)

    def undo(self) -> None:
        """Undo everything in the server's view, in reverse order."""
        while self._undo:
            self._undo.pop()()


class Handles:
    """Numbers from 0 on, the lowest free one first, as BMv2 gives out its handles."""

    def __init__(self) -> None:
        self._fresh = 0
        self._free: list[int] = []

    def take(self, tx: Transaction) -> int:
        """Return the lowest free number, which is taken then."""
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._fresh = self._fresh, self._fresh + 1
        tx.on_undo(lambda: heapq.heappush(self._free, number))
        return number

    def give(self, number: int, tx: Transaction) -> None:
        """Give a number back."""
        heapq.heappush(self._free, number)
        tx.on_undo(lambda: self._claim(number))

    def _claim(self, number: int) -> None:
        self._free.remove(number)
        heapq.heapify(self._free)
