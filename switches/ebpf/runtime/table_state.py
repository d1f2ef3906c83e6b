"""The entries of a table, as the server keeps them in addition to the maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mrclab.switches.ebpf.plan.layouts import TableLayout
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
from mrclab.switches.ebpf.runtime.tuple_space import TupleSpace
from mrclab.switches.v1model.pipeline import ConstEntry, Table


class TableState:
    """The entries of a table. Planning a change updates this view at once; the caller then applies it."""

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
        """Plan the table's state at load: const entries and its default."""
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
        """Add an entry; its `cell` is chosen here; `prepare` is called with it before the entry can be hit.

        Raises ExistsError or TableFullError.
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
        prepare(entry.cell)
        self._change(entry.match, ident, tx)
        return entry

    def modify(self, entry: Entry, tx: Transaction) -> Entry:
        """Give an entry another action; it keeps its counter. Returns the old entry. Raises NotThereError."""
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
        """Remove an entry and return it. Raises NotThereError."""
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
        """Set the default action; None restores the one of the program."""
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
        """Update what depends on the entries. Returns True if the list of tuples has changed."""
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
