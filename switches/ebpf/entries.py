"""Table entries as numbers, and as the bytes that the maps hold."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from switches.bmv2_json import ConstEntry, Table
from switches.ebpf.plan import ActionLayout, TableLayout, round8

# One element of a key: value and mask, or low and high end of a range.
Match = tuple[int, int]


@dataclass(frozen=True)
class Action:
    """An action with its arguments."""

    layout: ActionLayout
    args: tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """An entry. Of two that match, the one with the higher `priority` wins; `cell` is its counter's."""

    match: tuple[Match, ...]
    priority: int
    action: Action
    cell: int = 0
    metadata: bytes = b""


Ident = tuple[tuple[Match, ...], int]


@dataclass(frozen=True)
class Change:
    """One map update (`value` None: a removal), and how to forget that it was meant to happen."""

    map: int
    key: bytes
    value: bytes | None
    undo: Callable[[], None]


class TableFullError(Exception):
    """The table has as many entries as it can hold."""


class ExistsError(Exception):
    """There is such an entry already."""


class NotThereError(Exception):
    """There is no such entry."""


def full_mask(width: int) -> int:
    """The mask under which every bit counts."""
    return (1 << width) - 1


def encode_action(layout: TableLayout, action: Action, cell: int) -> bytes:
    """The value of an entry, or of a table's default."""
    out = bytearray(layout.value_size)
    struct.pack_into("=II", out, 0, action.layout.number, cell)
    for slot, arg in zip(action.layout.params, action.args, strict=True):
        out[slot.offset : slot.offset + slot.size] = arg.to_bytes(slot.size, "little")
    return bytes(out)


def encode_key(layout: TableLayout, match: tuple[Match, ...]) -> bytes:
    """The key of an entry of a hash or a trie."""
    out = bytearray(layout.key_size)
    prefix = (layout.key_size - 4) * 8
    for slot, (value, mask) in zip(layout.key, match, strict=True):
        out[slot.offset : slot.offset + slot.size] = value.to_bytes(slot.size, "big")
        if slot.match == "lpm":
            prefix -= slot.width - mask.bit_count()
    if layout.kind == "lpm":
        struct.pack_into("=I", out, 0, prefix)
    return bytes(out)


def encode_scan(layout: TableLayout, entries: list[Entry]) -> bytes:
    """The value of a table that is searched: its entries, the highest priority first."""
    out = bytearray(layout.cell_size * layout.capacity)
    low = 8 + layout.value_size
    high = low + round8(layout.key_size)
    for i, entry in enumerate(sorted(entries, key=lambda e: -e.priority)):
        base = i * layout.cell_size
        struct.pack_into("=Q", out, base, 1)
        out[base + 8 : base + 8 + layout.value_size] = encode_action(layout, entry.action, entry.cell)
        for slot, (a, z) in zip(layout.key, entry.match, strict=True):
            for place, number in ((low, a), (high, z)):
                at = base + place + slot.offset
                out[at : at + slot.size] = number.to_bytes(slot.size, "little")
    return bytes(out)


class TableState:
    """What a table holds. Planning a change updates this view at once; the caller then does the change."""

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

    def _initial_default(self) -> Action | None:
        default = self.table.default
        return None if default is None else Action(self.actions[default.action_id], default.data)

    @property
    def constant(self) -> bool:
        """Whether the entries are written in the program."""
        return bool(self.table.entries)

    def setup(self) -> list[Change]:
        """The map updates that bring about the table's state at load: const entries and its default."""
        changes = [self.insert(e) for e in self._const_entries()]
        if self.default is not None and self.layout.default_map is not None:
            value = encode_action(self.layout, self.default, 0)
            changes.append(Change(self.layout.default_map, b"\0" * 4, value, lambda: None))
        return changes

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
            priority = len(ranked) - rank if self.layout.kind == "scan" else 0
            out.append(Entry(tuple(match), priority, Action(self.actions[e.action_id], e.data)))
        return out

    def take_cell(self) -> tuple[int, bool]:
        """A counter cell for a new entry, and whether an entry had it before."""
        if self._free_cells:
            return self._free_cells.pop(), True
        self._fresh_cell += 1
        return self._fresh_cell - 1, False

    def _give_back(self, cell: int) -> None:
        self._free_cells.append(cell)

    def insert(self, entry: Entry) -> Change:
        """Add an entry; its `cell` is chosen here. Raises ExistsError or TableFullError."""
        ident = (entry.match, entry.priority)
        if ident in self.entries:
            raise ExistsError
        if len(self.entries) >= self.layout.capacity:
            raise TableFullError
        cell, _ = self.take_cell()
        entry = Entry(entry.match, entry.priority, entry.action, cell, entry.metadata)
        self.entries[ident] = entry

        def undo() -> None:
            self.entries.pop(ident, None)
            self._give_back(cell)

        return self._change(entry, undo)

    def modify(self, entry: Entry) -> Change:
        """Give an entry another action; its counter goes on. Raises NotThereError."""
        ident = (entry.match, entry.priority)
        old = self.entries.get(ident)
        if old is None:
            raise NotThereError
        entry = Entry(entry.match, entry.priority, entry.action, old.cell, entry.metadata)
        self.entries[ident] = entry
        return self._change(entry, lambda: self.entries.__setitem__(ident, old))

    def delete(self, ident: Ident) -> Change:
        """Remove an entry. Raises NotThereError."""
        old = self.entries.pop(ident, None)
        if old is None:
            raise NotThereError
        self._give_back(old.cell)

        def undo() -> None:
            self._free_cells.remove(old.cell)
            self.entries[ident] = old

        return self._change(old, undo, gone=True)

    def set_default(self, action: Action | None, metadata: bytes = b"") -> Change:
        """Set the default action; None brings back the one of the program."""
        before = (self.default, self.default_metadata)
        self.default, self.default_metadata = action or self.initial_default, metadata

        def undo() -> None:
            self.default, self.default_metadata = before

        assert self.layout.default_map is not None
        value = None if self.default is None else encode_action(self.layout, self.default, 0)
        return Change(self.layout.default_map, b"\0" * 4, value, undo)

    def _change(self, entry: Entry, undo: Callable[[], None], gone: bool = False) -> Change:
        assert self.layout.map is not None
        if self.layout.kind == "scan":
            value = encode_scan(self.layout, list(self.entries.values()))
            return Change(self.layout.map, b"\0" * 4, value, undo)
        key = encode_key(self.layout, entry.match)
        if gone:
            return Change(self.layout.map, key, None, undo)
        return Change(self.layout.map, key, encode_action(self.layout, entry.action, entry.cell), undo)
