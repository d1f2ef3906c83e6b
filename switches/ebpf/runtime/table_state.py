"""The entries of a table, which the server stores in addition to the BPF maps.

Large ternary tables use tuple space search (Srinivasan, Suri, Varghese 1999). Entries with the same masks
form a tuple, in which one hash look-up finds the matching entry. The time of a look-up grows with the number
of different masks, and not with the number of entries. A range is split into prefixes.

A table with tuple space search has two maps. The first map has one value: the list of tuples, the highest
priority first. The second map is a hash map of entries. Its keys are the number of a tuple and a masked key.
If several entries have the same key, the map holds only the entry of the highest priority.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product

from mrclab.switches.ebpf.plan import TUPLE_HEADER, TUPLES, KeySlot, TableLayout, tuple_size
from mrclab.switches.ebpf.runtime.entries import (
    Action,
    Entry,
    ExistsError,
    Ident,
    Match,
    NotThereError,
    TableFullError,
    encode_action,
    encode_key,
    encode_scan,
    full_mask,
)
from mrclab.switches.ebpf.runtime.transaction import Transaction
from mrclab.switches.v1model.program import ConstEntry, Table

MaskedValue = tuple[int, int]  # (value, mask)
TupleIdent = tuple[tuple[MaskedValue, ...], int]
Key = tuple[MaskedValue, ...]
EXPANSIONS = 4096  # maximum number of keys (combinations of prefixes) of one entry with ranges


def prefixes(low: int, high: int, width: int) -> Iterator[MaskedValue]:
    """Split a range into as few prefixes as possible. Yield their values and masks."""
    full = (1 << width) - 1
    while low <= high:
        size = low & -low or 1 << width
        while size > high - low + 1:
            size >>= 1
        yield low, full & ~(size - 1)
        low += size


def expand(key: tuple[KeySlot, ...], match: tuple[MaskedValue, ...]) -> Iterator[Key]:
    """Yield the keys of an entry, one for each combination of prefixes of its ranges."""
    parts = [
        list(prefixes(*m, slot.width)) if slot.match == "range" else [m]
        for slot, m in zip(key, match, strict=True)
    ]
    return product(*parts)


def expansions(key: tuple[KeySlot, ...], match: tuple[MaskedValue, ...]) -> int:
    """Return the number of keys that `expand` yields for an entry."""
    count = 1
    for slot, m in zip(key, match, strict=True):
        if slot.match == "range":
            count *= sum(1 for _ in prefixes(*m, slot.width))
    return count


@dataclass
class _Tuple:
    number: int
    keys: int = 0
    priority: int = 0  # upper limit of the priorities of the tuple's entries


@dataclass
class TupleSpace:
    """The server's copy of a table's two maps. One map has the entries, the other has the tuples of masks."""

    layout: TableLayout
    tuples: dict[tuple[int, ...], _Tuple] = field(default_factory=dict)
    holders: dict[Key, dict[TupleIdent, None]] = field(default_factory=dict)
    # A tuple keeps its number even if it is removed and added again. The number is a part of the keys in the
    # map of entries, and an undo needs the same keys.
    _numbers: dict[tuple[int, ...], int] = field(default_factory=dict)

    def shortage(self, match: tuple[MaskedValue, ...]) -> str:
        """Return why an entry cannot be added, or "" if it can."""
        count = expansions(self.layout.key, match)
        if count > EXPANSIONS:
            return f"the entry's ranges make {count} prefixes, and {EXPANSIONS} at most are possible"
        masks = {tuple(mask for _, mask in key) for key in expand(self.layout.key, match)}
        needed = len(self.tuples) + len(masks - self.tuples.keys())
        if needed > TUPLES:
            return f"its entries would have {needed} different masks, and {TUPLES} at most are possible"
        return ""

    def sync(self, ident: TupleIdent, present: bool) -> bool:
        """Record whether an entry is present. Return True if the list of tuples has changed."""
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

    def _add(self, key: Key, ident: TupleIdent) -> bool:
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

    def _remove(self, key: Key, ident: TupleIdent) -> bool:
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

    def best(self, key: Key) -> TupleIdent | None:
        """Return the entry with this key that has the highest priority."""
        return max(self.holders.get(key, {}), key=lambda ident: ident[1], default=None)

    def encode_key(self, number: int, key: Key) -> bytes:
        """Return the key of an entry in the hash map of entries."""
        out = bytearray(TUPLE_HEADER + self.layout.key_size)
        struct.pack_into("=I", out, 0, number)
        for slot, (value, mask) in zip(self.layout.key, key, strict=True):
            at = TUPLE_HEADER + slot.offset
            out[at : at + slot.size] = (value & mask).to_bytes(slot.size, "little")
        return bytes(out)

    def encode_tuples(self) -> bytes:
        """Return the value of the map of tuples: priority, number and masks of each tuple."""
        size = tuple_size(self.layout.key_size)
        out = bytearray(size * TUPLES)
        ordered = sorted(self.tuples.items(), key=lambda item: -item[1].priority)
        for i, (masks, known) in enumerate(ordered):
            struct.pack_into("=II", out, i * size, known.priority, known.number)
            for slot, mask in zip(self.layout.key, masks, strict=True):
                at = i * size + TUPLE_HEADER + slot.offset
                out[at : at + slot.size] = mask.to_bytes(slot.size, "little")
        return bytes(out)

    def numbers(self, match: tuple[MaskedValue, ...]) -> list[tuple[int, Key]]:
        """Return the keys of an entry with their tuple numbers. Omit keys whose tuple does not exist."""
        found = []
        for key in expand(self.layout.key, match):
            known = self.tuples.get(tuple(mask for _, mask in key))
            if known is not None:
                found.append((known.number, key))
        return found

    def reader(self, key: Key, value: Callable[[TupleIdent], bytes]) -> Callable[[], bytes | None]:
        """Return a function that computes the value which a key should have in the hash map.

        The function uses the entries that the table has at the time of the call.
        """

        def current() -> bytes | None:
            ident = self.best(key)
            if ident is None:
                return None
            return value(ident) + struct.pack("=II", ident[1], 0)

        return current


class TableState:
    """The entries of a table. A change updates this object and adds map updates to `tx` for the caller."""

    def __init__(self, table: Table, layout: TableLayout) -> None:
        self.table = table
        self.layout = layout
        self.entries: dict[Ident, Entry] = {}
        self.actions = {a.id: a for a in layout.actions}
        self._fresh_cell = 0
        self._free_cells: list[int] = []
        self.initial_default = self._initial_default()
        self.default = self.initial_default
        self.default_metadata = b""
        self.default_cookie = 0
        self.space = TupleSpace(layout) if layout.kind == "tuples" else None
        self.timed: set[Ident] = set()  # entries with an idle timeout

    def _initial_default(self) -> Action | None:
        default = self.table.default
        return None if default is None else Action(self.actions[default.action_id], default.data)

    def setup(self, tx: Transaction) -> None:
        """Add the program's const entries and its default action, for a program that was just loaded."""
        for entry in self._const_entries():
            self.insert(entry, tx)
        if self.default is not None and self.layout.default_map is not None:
            tx.change(self.layout.default_map, bytes(4), self._default_value(), self._default_value)

    def _const_entries(self) -> list[Entry]:
        ranked: list[ConstEntry] = sorted(self.table.entries, key=lambda e: e.priority)
        out = []
        for rank, e in enumerate(ranked):
            match = []
            for slot, k in zip(self.layout.key, e.key, strict=True):
                full = full_mask(slot.width)
                match k.match:
                    case "lpm":
                        mask = full ^ (full >> k.prefix)
                    case "ternary" | "optional":
                        mask = k.mask
                    case "range":
                        mask = k.end
                    case _:
                        mask = full
                match.append((k.key if k.match == "range" else k.key & mask, mask))
            priority = len(ranked) - rank if self.layout.kind in ("scan", "tuples") else 0
            out.append(Entry(tuple(match), priority, Action(self.actions[e.action_id], e.data)))
        return out

    def deleted(self) -> set[Ident]:
        """Return the entries of the program that a client has deleted."""
        return {(e.match, e.priority) for e in self._const_entries()} - self.entries.keys()

    def _take_cell(self, tx: Transaction) -> int:
        if self._free_cells:
            cell = self._free_cells.pop()
        else:
            cell, self._fresh_cell = self._fresh_cell, self._fresh_cell + 1
        tx.on_undo(lambda: self._free_cells.append(cell))
        return cell

    def insert(
        self, entry: Entry, tx: Transaction, prepare: Callable[[int], None] = lambda cell: None
    ) -> Entry:
        """Add an entry. Return it with its `cell`, the index of its counter.

        `prepare(cell)` is called before a frame can hit the entry. Raise ExistsError or TableFullError.
        """
        ident = (entry.match, entry.priority)
        if ident in self.entries:
            raise ExistsError
        if len(self.entries) >= self.layout.capacity:
            raise TableFullError
        shortage = self.space.shortage(entry.match) if self.space is not None else ""
        if shortage:
            raise TableFullError(shortage)
        entry = replace(entry, cell=self._take_cell(tx))
        tx.on_undo(lambda: self._sync(ident))
        self.entries[ident] = entry
        tx.on_undo(lambda: self.entries.pop(ident))
        first = len(tx.changes)
        prepare(entry.cell)
        tx.hide(first)
        self._change(entry.match, ident, tx)
        return entry

    def modify(self, entry: Entry, tx: Transaction) -> Entry:
        """Change an entry's action, keep its counter. Return the old entry. Raise NotThereError if absent."""
        ident = (entry.match, entry.priority)
        old = self.entries.get(ident)
        if old is None:
            raise NotThereError
        tx.on_undo(lambda: self._sync(ident))
        self.entries[ident] = replace(entry, cell=old.cell)
        tx.on_undo(lambda: self.entries.__setitem__(ident, old))
        self._change(entry.match, ident, tx)
        return old

    def delete(self, ident: Ident, tx: Transaction) -> Entry:
        """Remove an entry and return it. Raise NotThereError if it does not exist."""
        old = self.entries.pop(ident, None)
        if old is None:
            raise NotThereError
        tx.on_undo(lambda: self._sync(ident))
        tx.on_undo(lambda: self.entries.__setitem__(ident, old))
        self._free_cells.append(old.cell)
        tx.on_undo(lambda: self._free_cells.remove(old.cell))
        self._change(old.match, ident, tx)
        return old

    def set_default(
        self, action: Action | None, tx: Transaction, metadata: bytes = b"", cookie: int = 0
    ) -> None:
        """Set the default action. None restores the program's default action."""
        before = (self.default, self.default_metadata, self.default_cookie)

        def put(state: tuple[Action | None, bytes, int]) -> None:
            self.default, self.default_metadata, self.default_cookie = state

        put((action or self.initial_default, metadata, cookie))
        tx.on_undo(lambda: put(before))
        assert self.layout.default_map is not None
        tx.change(self.layout.default_map, bytes(4), self._default_value(), self._default_value)

    def _default_value(self) -> bytes | None:
        return None if self.default is None else encode_action(self.layout.value_size, self.default, 0)

    def _change(self, match: tuple[Match, ...], ident: Ident, tx: Transaction) -> None:
        assert self.layout.map is not None
        if self.space is not None:
            self._change_tuples(self.space, ident, tx)
            return
        self._sync(ident)
        if self.layout.kind == "scan":
            key, current = bytes(4), self._scan_value
        else:
            key, current = encode_key(self.layout, match), lambda: self._value(ident)
        tx.change(self.layout.map, key, current(), current)

    def _change_tuples(self, space: TupleSpace, ident: Ident, tx: Transaction) -> None:
        assert self.layout.map is not None
        assert self.layout.tuple_map is not None
        before = space.numbers(ident[0])
        listed = self._sync(ident)
        keys = {key: number for number, key in (*before, *space.numbers(ident[0]))}

        def list_tuples() -> None:
            if listed:
                assert self.layout.tuple_map is not None
                tx.change(self.layout.tuple_map, bytes(4), space.encode_tuples(), space.encode_tuples)

        if ident not in self.entries:
            list_tuples()
        for key, number in keys.items():
            current = space.reader(key, self._known_value)
            tx.change(self.layout.map, space.encode_key(number, key), current(), current)
        if ident in self.entries:
            list_tuples()

    def _known_value(self, ident: Ident) -> bytes:
        entry = self.entries[ident]
        return encode_action(self.layout.value_size, entry.action, entry.cell)

    def _sync(self, ident: Ident) -> bool:
        """Update `space` and `timed` after a change of `entries`. Return True if the tuples have changed."""
        entry = self.entries.get(ident)
        listed = self.space is not None and self.space.sync(ident, entry is not None)
        if entry is not None and entry.timeout_ns:
            self.timed.add(ident)
        else:
            self.timed.discard(ident)
        return listed

    def _scan_value(self) -> bytes | None:
        return encode_scan(self.layout, list(self.entries.values()))

    def _value(self, ident: Ident) -> bytes | None:
        entry = self.entries.get(ident)
        return None if entry is None else encode_action(self.layout.value_size, entry.action, entry.cell)
