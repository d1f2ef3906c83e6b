"""Transactions: the map updates of a change, and functions that undo the change in the server's state."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Change:
    """One map update. If `value` is None, the key is removed.

    `current` returns the value that follows from the server's present state for this key. If a transaction
    is undone, this value is written to the map. If `unseen` is true, the value belongs to an entry that no
    frame can hit before the transaction's other map updates, or after them.
    """

    map: int
    key: bytes
    value: bytes | None
    current: Callable[[], bytes | None]
    unseen: bool = False


@dataclass
class Transaction:
    """The map updates of one P4Runtime update. The server's own state changes first, then the maps.

    `cells` is the number of register cells that were written already. The functions `counter_starts` read
    the counts from which new entries count. If the same batch deletes entries, they are called again when
    the map updates are made.
    """

    changes: list[Change] = field(default_factory=list)
    cells: int = 0
    counter_starts: list[Callable[[], object]] = field(default_factory=list)
    _undo: list[Callable[[], object]] = field(default_factory=list)

    def change(
        self, map_index: int, key: bytes, value: bytes | None, current: Callable[[], bytes | None]
    ) -> None:
        """Add a map update."""
        self.changes.append(Change(map_index, key, value, current))

    def hide(self, first: int) -> None:
        """Mark the map updates from number `first` on as unseen."""
        self.changes[first:] = [replace(c, unseen=True) for c in self.changes[first:]]

    def start_counters(self) -> None:
        """Read again the counts from which new entries count."""
        for start in self.counter_starts:
            start()

    def on_undo(self, action: Callable[[], object]) -> None:
        """Register a function that undoes the last change of the server's state."""
        self._undo.append(action)

    def undo(self) -> None:
        """Undo all changes of the server's state, in reverse order."""
        while self._undo:
            self._undo.pop()()


class Handles:
    """A pool of numbers from 0. As for BMv2's handles, the lowest free number is taken first."""

    def __init__(self) -> None:
        self._fresh = 0
        self._free: list[int] = []

    def take(self, tx: Transaction) -> int:
        """Take the lowest free number and return it."""
        if self._free:
            number = heapq.heappop(self._free)
        else:
            number, self._fresh = self._fresh, self._fresh + 1
        tx.on_undo(lambda: heapq.heappush(self._free, number))
        return number

    def give(self, number: int, tx: Transaction) -> None:
        """Return a number to the pool, so that it is free again."""
        heapq.heappush(self._free, number)
        tx.on_undo(lambda: self._claim(number))

    def _claim(self, number: int) -> None:
        self._free.remove(number)
        heapq.heapify(self._free)
