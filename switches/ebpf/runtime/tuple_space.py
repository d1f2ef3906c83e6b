"""Tuple space search (Srinivasan, Suri, Varghese 1999) for ternary tables of any size.

Entries with the same masks form a tuple, in which one hash look-up finds the matching entry. So the cost of a
look-up depends on the number of different masks, not of entries. A range is split into prefixes.

Two maps: the tuples in one value, replaced as a whole, the one with the highest priority first; and a hash of
entries, by tuple and masked key. Of entries that share both, the one with the highest priority is there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

from mrclab.switches.ebpf.plan.layouts import TUPLE_HEADER, TUPLES, KeySlot, TableLayout, tuple_size

Match = tuple[int, int]  # value and mask
Ident = tuple[tuple[Match, ...], int]
Key = tuple[Match, ...]
EXPANSIONS = 4096  # prefixes that the ranges of one entry may expand to


def prefixes(low: int, high: int, width: int) -> Iterator[Match]:
    """Yield the fewest values with masks that make up a range."""
    full = (1 << width) - 1
    while low <= high:
        size = low & -low or 1 << width
        while size > high - low + 1:
            size >>= 1
        yield low, full & ~(size - 1)
        low += size


def expand(key: tuple[KeySlot, ...], match: tuple[Match, ...]) -> Iterator[Key]:
    """Yield the keys of an entry: its match with every range as prefixes."""
    parts = [
        list(prefixes(*m, slot.width)) if slot.match == "range" else [m]
        for slot, m in zip(key, match, strict=True)
    ]
    return product(*parts)


def expansions(key: tuple[KeySlot, ...], match: tuple[Match, ...]) -> int:
    """Return how many keys an entry has."""
    count = 1
    for slot, m in zip(key, match, strict=True):
        if slot.match == "range":
            count *= sum(1 for _ in prefixes(*m, slot.width))
    return count


@dataclass
class _Tuple:
    number: int
    keys: int = 0
    priority: int = 0  # no entry has a higher one


@dataclass
class TupleSpace:
    """The server's view of the two maps. It holds entries by their keys, and the tuples by their masks."""

    layout: TableLayout
    tuples: dict[tuple[int, ...], _Tuple] = field(default_factory=dict)
    holders: dict[Key, dict[Ident, None]] = field(default_factory=dict)
    # A number always stays with its masks, so that an undone change finds its keys again.
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def shortage(self, match: tuple[Match, ...]) -> str:
        """Return why an entry cannot be added, "" if it can."""
        count = expansions(self.layout.key, match)
        if count > EXPANSIONS:
            return f"the entry's ranges make {count} prefixes, and {EXPANSIONS} at most are possible"
        masks = {tuple(mask for _, mask in key) for key in expand(self.layout.key, match)}
        needed = len(self.tuples) + len(masks - self.tuples.keys())
        if needed > TUPLES:
            return f"its entries would have {needed} different masks, and {TUPLES} at most are possible"
        return ""

    def sync(self, ident: Ident, present: bool) -> bool:
        """Note that an entry is present or not. Returns True if the list of tuples has changed."""
        changed = False
        for key in expand(self.layout.key, ident[0]):
            held = self.holders.get(key, {})
            if (ident in held) == present:
                continue
            if present:
                changed |= self._add(key, ident)
            else:
                changed |= self._remove(key, ident)
        return changed

    def _add(self, key: Key, ident: Ident) -> bool:
        masks = tuple(mask for _, mask in key)
        changed = masks not in self.tuples
        if changed:
            self.tuples[masks] = _Tuple(self._numbers.setdefault(masks, len(self._numbers) + 1))
        known = self.tuples[masks]
        if key not in self.holders:
            self.holders[key] = {}
            known.keys += 1
        self.holders[key][ident] = None
        if ident[1] > known.priority:
            known.priority, changed = ident[1], True
        return changed

    def _remove(self, key: Key, ident: Ident) -> bool:
        masks = tuple(mask for _, mask in key)
        del self.holders[key][ident]
        if self.holders[key]:
            return False
        del self.holders[key]
        known = self.tuples[masks]
        known.keys -= 1
        if not known.keys:
            del self.tuples[masks]
        return not known.keys

    def best(self, key: Key) -> Ident | None:
        """Return the entry with this key that has the highest priority."""
        return max(self.holders.get(key, {}), key=lambda ident: ident[1], default=None)

    def encode_key(self, number: int, key: Key) -> bytes:
        """Return a key of the hash of entries."""
        out = bytearray(TUPLE_HEADER + self.layout.key_size)
        struct.pack_into("=I", out, 0, number)
        for slot, (value, mask) in zip(self.layout.key, key, strict=True):
            at = TUPLE_HEADER + slot.offset
            out[at : at + slot.size] = (value & mask).to_bytes(slot.size, "little")
        return bytes(out)

    def encode_tuples(self) -> bytes:
        """Return the value of the map of tuples."""
        size = tuple_size(self.layout.key_size)
        out = bytearray(size * TUPLES)
        ordered = sorted(self.tuples.items(), key=lambda item: -item[1].priority)
        for i, (masks, known) in enumerate(ordered):
            struct.pack_into("=II", out, i * size, known.priority, known.number)
            for slot, mask in zip(self.layout.key, masks, strict=True):
                at = i * size + TUPLE_HEADER + slot.offset
                out[at : at + slot.size] = mask.to_bytes(slot.size, "little")
        return bytes(out)

    def numbers(self, match: tuple[Match, ...]) -> list[tuple[int, Key]]:
        """Return the keys of an entry with the numbers of their tuples, as far as these exist."""
        found = []
        for key in expand(self.layout.key, match):
            known = self.tuples.get(tuple(mask for _, mask in key))
            if known is not None:
                found.append((known.number, key))
        return found

    def reader(self, key: Key, value: Callable[[Ident], bytes]) -> Callable[[], bytes | None]:
        """Return a function that returns the hash's due value for a key at the time of its call."""

        def current() -> bytes | None:
            ident = self.best(key)
            if ident is None:
                return None
            return value(ident) + struct.pack("=II", ident[1], 0)

        return current
