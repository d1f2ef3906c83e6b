"""TableEntry (specification, section 9.1)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from switches.ebpf.changes import Transaction
from switches.ebpf.entries import (
    Action,
    Entry,
    ExistsError,
    NotThereError,
    Reference,
    TableFullError,
)
from switches.ebpf.p4rt.one_shots import read_one_shot
from switches.ebpf.p4rt.running import Running
from switches.ebpf.p4rt.schema import Schema, TableSchema
from switches.ebpf.p4rt.status import Code, P4RuntimeError


class TableEntries:
    """Writes and reads entries of tables, and their default entries."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Insert, modify or delete an entry, or modify a default."""
        kind, message = update.type, update.entity.table_entry
        table = self.schema.table(message.table_id)
        state = self.running.tables[table.name]
        if message.is_default_action:
            self._write_default(table, kind, message, tx)
            return
        if table.const_table or state.constant:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"the entries of table {table.name} are constant")
        if not table.fields:
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"table {table.name} has no key: only its default can be set"
            )
        try:
            if kind == p4r.Update.INSERT:
                self._insert(table, message, tx)
            elif kind == p4r.Update.MODIFY:
                self._modify(table, message, tx)
            elif kind == p4r.Update.DELETE:
                self._let_go(table, state.delete(table.read_ident(message), tx), tx)
            else:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without a type")
        except ExistsError as exc:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"table {table.name} has that entry already") from exc
        except NotThereError as exc:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry") from exc
        except TableFullError as exc:
            raise P4RuntimeError(
                Code.RESOURCE_EXHAUSTED, f"table {table.name} is full ({table.layout.capacity} entries)"
            ) from exc

    def _insert(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> None:
        state = self.running.tables[table.name]
        ident = table.read_ident(message)
        if ident in state.entries:
            raise ExistsError
        action = self._action(table, message, tx)
        entry = state.insert(Entry(*ident, action, metadata=message.metadata), tx)
        index = table.layout.counter_map
        if index is not None:  # whatever the cell has counted for another entry
            self.running.counters.set(index, table.layout.capacity, entry.cell, (0, 0), tx)
        if message.HasField("counter_data"):
            self.set_counter(message, message.counter_data, tx)

    def _modify(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> None:
        state = self.running.tables[table.name]
        ident = table.read_ident(message)
        old = state.entries.get(ident)
        if old is None:
            raise NotThereError
        if message.HasField("action"):
            action = self._action(table, message, tx)
            state.modify(Entry(*ident, action, metadata=message.metadata), tx)
            self._let_go(table, old, tx)
        if message.HasField("counter_data"):
            self.set_counter(message, message.counter_data, tx)

    def _action(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> Action | Reference:
        if not message.HasField("action"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name}: an entry needs an action")
        if table.profile is None or message.action.WhichOneof("type") == "action":
            return table.read_action(message.action, default=False)
        return self._reference(table, message.action, tx)

    def _reference(self, table: TableSchema, action: p4r.TableAction, tx: Transaction) -> Reference:
        """What an entry of a table with an action profile refers to."""
        assert table.profile is not None
        layout = table.profile.layout
        profile = self.running.profiles[layout.name]
        kind = action.WhichOneof("type")
        if kind is None or (layout.group_map is None and kind != "action_profile_member_id"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} takes members of {layout.name}")
        try:
            if kind == "action_profile_action_set":
                actions, text = read_one_shot(
                    table, action.action_profile_action_set, self.running.datapath.ifindexes
                )
                if profile.programmed:
                    raise P4RuntimeError(
                        Code.INVALID_ARGUMENT,
                        f"{layout.name} has members or groups: one-shots cannot be mixed with them",
                    )
                return profile.make_one_shot(actions, text, tx)
            if kind == "action_profile_group_id":
                reference = profile.refer_to_group(action.action_profile_group_id)
            else:
                reference = profile.refer_to_member(action.action_profile_member_id)
        except NotThereError as exc:
            raise P4RuntimeError(Code.NOT_FOUND, f"{layout.name} has no such member or group") from exc
        except TableFullError as exc:
            raise P4RuntimeError(
                Code.RESOURCE_EXHAUSTED, f"{layout.name} is full ({layout.size} members)"
            ) from exc
        profile.count(reference, 1, tx)
        return reference

    def _let_go(self, table: TableSchema, old: Entry, tx: Transaction) -> None:
        """An entry no longer refers to what it did."""
        if table.profile is None or not isinstance(old.action, Reference):
            return
        profile = self.running.profiles[table.profile.layout.name]
        if old.action.one_shot:
            profile.drop_one_shot(old.action, tx)
        else:
            profile.count(old.action, -1, tx)

    def _write_default(
        self,
        table: TableSchema,
        kind: p4r.Update.Type.ValueType,
        message: p4r.TableEntry,
        tx: Transaction,
    ) -> None:
        if kind != p4r.Update.MODIFY:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a default entry can only be modified")
        if message.match or message.priority:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a default entry takes no match and no priority")
        if table.const_default:
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, f"the default action of table {table.name} is constant"
            )
        action = table.read_action(message.action, default=True) if message.HasField("action") else None
        self.running.tables[table.name].set_default(action, tx, message.metadata)

    def set_counter(self, message: p4r.TableEntry, data: p4r.CounterData, tx: Transaction) -> None:
        """Set the counter of an entry."""
        table = self.schema.table(message.table_id)
        index = table.layout.counter_map
        if index is None or not table.counter_id:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} has no direct counter")
        if message.is_default_action:
            raise P4RuntimeError(
                Code.UNIMPLEMENTED, "a default entry has no counter on this target, as in BMv2"
            )
        ident = (table.read_match(list(message.match)), message.priority)
        entry = self.running.tables[table.name].entries.get(ident)
        if entry is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry")
        counts = data.packet_count, data.byte_count
        self.running.counters.set(index, table.layout.capacity, entry.cell, counts, tx)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """The entries that are asked for, or defaults."""
        wanted = entity.table_entry
        if not wanted.table_id and wanted.match:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a match without a table")
        for table in self.schema.tables_of(wanted.table_id):
            if wanted.is_default_action:
                yield from self._read_default(table)
                continue
            for entry in self.selected(table, wanted, wanted.HasField("counter_data")):
                yield p4r.Entity(table_entry=entry)

    def _read_default(self, table: TableSchema) -> Iterator[p4r.Entity]:
        state = self.running.tables[table.name]
        if state.default is None:
            return
        entry = p4r.TableEntry(table_id=table.id, is_default_action=True, metadata=state.default_metadata)
        table.write_action(state.default, entry)
        yield p4r.Entity(table_entry=entry)

    def selected(
        self, table: TableSchema, wanted: p4r.TableEntry, with_counter: bool
    ) -> Iterator[p4r.TableEntry]:
        """The entries of a table that a wildcard lets through, with their counters where asked for."""
        entries = self._matching(table, wanted)
        index = table.layout.counter_map if with_counter and table.counter_id else None
        counts = None
        if index is not None and len(entries) > 1:
            counts = self.running.counters.read_all(index, table.layout.capacity)
        for entry in entries:
            out = table.write_entry(entry)
            if index is not None:
                cells = table.layout.capacity
                out.counter_data.CopyFrom(
                    counts[entry.cell] if counts else self.running.counters.read(index, cells, entry.cell)
                )
            yield out

    def _matching(self, table: TableSchema, wanted: p4r.TableEntry) -> list[Entry]:
        entries = list(self.running.tables[table.name].entries.values())
        if wanted.match:
            match = table.read_match(list(wanted.match))
            entries = [e for e in entries if e.match == match]
        if wanted.priority:
            entries = [e for e in entries if e.priority == wanted.priority]
        if wanted.metadata:
            entries = [e for e in entries if e.metadata == wanted.metadata]
        if wanted.HasField("action"):
            entries = [e for e in entries if table.has_action(e.action, wanted.action)]
        return entries
