"""Table entries (TableEntry, specification section 9.1) and their idle timeouts (sections 9.1.8, 16.4)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.profiles import read_one_shot
from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema, TableSchema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import read_rates, write_rates
from mrclab.switches.ebpf.runtime.entries import (
    Action,
    Entry,
    ExistsError,
    Ident,
    NotThereError,
    Reference,
    TableFullError,
)
from mrclab.switches.ebpf.runtime.meters import MeterState
from mrclab.switches.ebpf.runtime.transaction import Transaction


class TableEntries:
    """Write and read the entries of tables, and their default entries (which hold the default actions)."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Insert, modify or delete an entry, or modify a default entry."""
        kind, message = update.type, update.entity.table_entry
        table = self.schema.table(message.table_id)
        if message.is_const:
            raise _bad(f"table {table.name}: an entry that is written cannot be is_const")
        if kind == p4r.Update.UNSPECIFIED:
            raise _bad("an update without a type")
        if kind != p4r.Update.DELETE:
            _check_times(table, message)
        try:
            if message.is_default_action:
                self._write_default(table, kind, message, tx)
            elif table.const_table:
                self._write_constant(table, kind, message, tx)
            elif not table.fields:
                raise _bad(f"table {table.name} has no key: only its default can be set")
            elif kind == p4r.Update.INSERT:
                self._insert(table, message, tx)
            elif kind == p4r.Update.MODIFY:
                self._modify(table, message, tx)
            else:
                state = self.running.tables[table.name]
                self._release(table, state.delete(table.read_ident(message), tx), tx)
        except ExistsError as exc:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"table {table.name} has that entry already") from exc
        except NotThereError as exc:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry") from exc
        except TableFullError as exc:
            why = str(exc) or f"it is full ({table.layout.capacity} entries)"
            raise P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"table {table.name}: {why}") from exc

    def _insert(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> None:
        state = self.running.tables[table.name]
        ident = table.read_ident(message)
        if ident in state.entries:
            raise ExistsError

        def prepare(cell: int) -> None:
            # A deleted entry may have used this cell before, so reset its counter, meter and hit time.
            if table.layout.counter_map is not None:
                counts = message.counter_data.packet_count, message.counter_data.byte_count
                self.running.counters.set(table.layout.counter_map, table.layout.capacity, cell, counts, tx)
            if table.layout.meter is not None:
                self._set_meter(self.running.direct_meters[table.name], cell, message, tx)
                self.running.counters.set_colours(table.layout.meter, cell, message.meter_counter_data, tx)
            if table.layout.hit_map is not None:
                self.running.stamp(table.layout.hit_map, cell, tx)

        self._check_resources(table, message)
        state.insert(self._entry(table, ident, message, tx), tx, prepare)

    def _entry(self, table: TableSchema, ident: Ident, message: p4r.TableEntry, tx: Transaction) -> Entry:
        return Entry(
            *ident,
            self._action(table, message, tx),
            metadata=message.metadata,
            cookie=message.controller_metadata,
            timeout_ns=message.idle_timeout_ns,
        )

    def _modify(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> None:
        state = self.running.tables[table.name]
        ident = table.read_ident(message)
        old = state.entries.get(ident)
        if old is None:
            raise NotThereError
        self._check_resources(table, message)
        if message.HasField("action"):
            state.modify(self._entry(table, ident, message, tx), tx)
            self._release(table, old, tx)
        self._set_resources(table, old, message, tx)

    def _write_constant(
        self, table: TableSchema, kind: p4r.Update.Type.ValueType, message: p4r.TableEntry, tx: Transaction
    ) -> None:
        """Change the counter or the meter of a const entry. Raise P4RuntimeError for other changes."""
        if kind != p4r.Update.MODIFY or message.HasField("action"):
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"the entries of table {table.name} are constant")
        _, entry = self.find(message)
        self._check_resources(table, message)
        self._set_resources(table, entry, message, tx)

    def _check_resources(self, table: TableSchema, message: p4r.TableEntry) -> None:
        if message.HasField("counter_data") and not table.counter_id:
            raise _bad(f"table {table.name} has no direct counter")
        if message.HasField("meter_config") and not table.meter_id:
            raise _bad(f"table {table.name} has no direct meter")
        if message.HasField("meter_counter_data") and not table.meter_id:
            raise _bad(f"table {table.name} has no direct meter")

    def _set_resources(
        self, table: TableSchema, entry: Entry, message: p4r.TableEntry, tx: Transaction
    ) -> None:
        if message.HasField("counter_data"):
            self.set_counter(message, message.counter_data, tx)
        if table.layout.meter is not None:
            self._set_meter(self.running.direct_meters[table.name], entry.cell, message, tx)
            if message.HasField("meter_counter_data"):
                counts = message.meter_counter_data
                self.running.counters.set_colours(table.layout.meter, entry.cell, counts, tx)

    def _set_meter(self, meter: MeterState, cell: int, message: p4r.TableEntry, tx: Transaction) -> None:
        rates = read_rates(message.meter_config) if message.HasField("meter_config") else None
        if rates is not None or cell in meter.rates:
            meter.set(cell, rates, tx)

    def _action(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> Action | Reference:
        if not message.HasField("action"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name}: an entry needs an action")
        if table.profile is None or message.action.WhichOneof("type") == "action":
            return table.read_action(message.action, default=False)
        return self._reference(table, message.action, tx)

    def _reference(self, table: TableSchema, action: p4r.TableAction, tx: Transaction) -> Reference:
        """Return the reference of an entry to a member or group of the table's action profile."""
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

    def _release(self, table: TableSchema, old: Entry, tx: Transaction) -> None:
        """Release the member or group of an action profile to which a deleted or changed entry referred."""
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
            raise _bad("a default entry can only be modified")
        if message.match or message.priority or message.idle_timeout_ns:
            raise _bad("a default entry takes no match, no priority and no idle timeout")
        self._check_resources(table, message)
        resources = any(message.HasField(f) for f in ("counter_data", "meter_config", "meter_counter_data"))
        if table.const_default and (message.HasField("action") or not resources):
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, f"the default action of table {table.name} is constant"
            )
        self._set_default_resources(table, message, tx)
        if table.const_default:
            return
        state = self.running.tables[table.name]
        if message.HasField("action"):
            action = table.read_action(message.action, default=True)
            state.set_default(action, tx, message.metadata, message.controller_metadata)
        else:
            state.set_default(None, tx)

    def _set_default_resources(self, table: TableSchema, message: p4r.TableEntry, tx: Transaction) -> None:
        if message.HasField("counter_data"):
            self.set_counter(message, message.counter_data, tx)
        if table.name in self.running.default_meters:
            meter = self.running.default_meters[table.name]
            self._set_meter(meter, 0, message, tx)
            if message.HasField("meter_counter_data"):
                self.running.counters.set_colours(meter.layout, 0, message.meter_counter_data, tx)

    def find(self, message: p4r.TableEntry) -> tuple[TableSchema, Entry]:
        """Return the table and the entry that a message names. Raise P4RuntimeError if there is none."""
        table = self.schema.table(message.table_id)
        entry = self.running.tables[table.name].entries.get(table.read_ident(message))
        if entry is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry")
        return table, entry

    def set_counter(self, message: p4r.TableEntry, data: p4r.CounterData, tx: Transaction) -> None:
        """Set the counter of an entry or of a default entry."""
        index, cells, cell = self.counter_of(message)
        self.running.counters.set(index, cells, cell, (data.packet_count, data.byte_count), tx)

    def counter_of(self, message: p4r.TableEntry) -> tuple[int, int, int]:
        """Return the place of a direct counter: index of the map, number of its cells, index of the cell.

        Raise P4RuntimeError if the table or the entry has no counter.
        """
        table = self.schema.table(message.table_id)
        layout = table.layout
        if message.is_default_action:
            index, cells, cell = layout.default_counter_map, 1, 0
        else:
            index, cells, cell = layout.counter_map, layout.capacity, self.find(message)[1].cell
        if index is None or not table.counter_id:
            raise _bad(f"table {table.name} has no direct counter")
        return index, cells, cell

    def meter_of(self, message: p4r.TableEntry) -> tuple[MeterState, int]:
        """Return meter and cell of an entry or default entry. Raise P4RuntimeError if there is no meter."""
        table = self.schema.table(message.table_id)
        if message.is_default_action:
            meters, cell = self.running.default_meters, 0
        else:
            meters, cell = self.running.direct_meters, self.find(message)[1].cell
        if not table.meter_id or table.name not in meters:
            raise _bad(f"table {table.name} has no direct meter")
        return meters[table.name], cell

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the requested entries, or default entries."""
        wanted = entity.table_entry
        if not wanted.table_id and wanted.match:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a match without a table")
        for table in self.schema.tables_of(wanted.table_id):
            if wanted.is_default_action:
                for entry in self.selected_default(table, wanted):
                    yield p4r.Entity(table_entry=entry)
                continue
            for entry in self.selected(table, wanted):
                yield p4r.Entity(table_entry=entry)

    def selected_default(self, table: TableSchema, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Yield the default entry of a table, if it has one, with the requested counter and meter data."""
        state = self.running.tables[table.name]
        if state.default is None:
            return
        entry = p4r.TableEntry(
            table_id=table.id,
            is_default_action=True,
            metadata=state.default_metadata,
            controller_metadata=state.default_cookie,
        )
        table.write_action(state.default, entry)
        index, counters = table.layout.default_counter_map, self.running.counters
        if wanted.HasField("counter_data") and table.counter_id and index is not None:
            entry.counter_data.CopyFrom(counters.read(index, 1, 0))
        if table.meter_id and table.name in self.running.default_meters:
            self._add_meter(self.running.default_meters[table.name], 0, wanted, entry)
        yield entry

    def keyed(self, table: TableSchema, wanted: p4r.TableEntry) -> Iterator[p4r.TableEntry]:
        """Return a table's entries, or its default entry, for a read of direct counters or meters."""
        if wanted.is_default_action:
            return self.selected_default(table, wanted)
        return self.selected(table, wanted, only_keys=True)

    def _add_meter(self, meter: MeterState, cell: int, wanted: p4r.TableEntry, to: p4r.TableEntry) -> None:
        rates = meter.rates.get(cell)
        if wanted.HasField("meter_config") and rates is not None:
            write_rates(rates, to.meter_config)
        if wanted.HasField("meter_counter_data"):
            to.meter_counter_data.CopyFrom(self.running.counters.read_colours(meter.layout, cell))

    def selected(
        self, table: TableSchema, wanted: p4r.TableEntry, only_keys: bool = False
    ) -> Iterator[p4r.TableEntry]:
        """Yield a table's entries that match a request, with the requested counter and meter data.

        If `only_keys` is true and the request names one entry that does not exist, raise NOT_FOUND.
        """
        entries = self._matching(table, wanted)
        if only_keys and wanted.match and not entries:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry")
        index = table.layout.counter_map if wanted.HasField("counter_data") and table.counter_id else None
        counts = None
        if index is not None and len(entries) > 1:
            counts = self.running.counters.read_all(index, table.layout.capacity)
        if wanted.HasField("time_since_last_hit") and not table.idle_timeout and wanted.table_id:
            raise _bad(f"table {table.name} has no idle timeout")
        for entry in entries:
            out = table.write_entry(entry)
            if index is not None:
                cells = table.layout.capacity
                out.counter_data.CopyFrom(
                    counts[entry.cell] if counts else self.running.counters.read(index, cells, entry.cell)
                )
            if table.meter_id and table.name in self.running.direct_meters:
                self._add_meter(self.running.direct_meters[table.name], entry.cell, wanted, out)
            if wanted.HasField("time_since_last_hit") and table.layout.hit_map is not None:
                idle = self.running.idle_ns(table.layout.hit_map, entry.cell)
                out.time_since_last_hit.elapsed_ns = idle
            yield out

    def _matching(self, table: TableSchema, wanted: p4r.TableEntry) -> list[Entry]:
        held = self.running.tables[table.name].entries
        if wanted.match and (wanted.priority or not table.prioritised):
            found = held.get((table.read_match(wanted.match), wanted.priority))
            entries = [] if found is None else [found]
        elif wanted.match:
            match = table.read_match(wanted.match)
            entries = [e for e in held.values() if e.match == match]
        else:
            entries = list(held.values())
        if wanted.priority:
            entries = [e for e in entries if e.priority == wanted.priority]
        if wanted.metadata:
            entries = [e for e in entries if e.metadata == wanted.metadata]
        if wanted.controller_metadata:
            entries = [e for e in entries if e.cookie == wanted.controller_metadata]
        if wanted.HasField("action"):
            entries = [e for e in entries if table.has_action(e.action, wanted.action)]
        return entries


def _bad(message: str) -> P4RuntimeError:
    return P4RuntimeError(Code.INVALID_ARGUMENT, message)


def _check_times(table: TableSchema, message: p4r.TableEntry) -> None:
    if message.HasField("time_since_last_hit"):
        raise _bad("time_since_last_hit cannot be written")
    if message.idle_timeout_ns and not table.idle_timeout:
        raise _bad(f"table {table.name} has no idle timeout")
    if message.idle_timeout_ns < 0:
        raise _bad("an idle timeout cannot be negative")


class IdleWatch:
    """Find idle entries of a running program. An entry is reported at most once per timeout."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running
        self._reported: dict[tuple[int, Ident], int] = {}  # (table id, entry) -> time of its last report

    @property
    def needed(self) -> bool:
        """True if any entry has an idle timeout."""
        return any(state.timed for state in self.running.tables.values())

    def expired(self, now_ns: int) -> list[p4r.TableEntry]:
        """Return the entries whose idle timeout has expired. `now_ns` is a time of CLOCK_MONOTONIC."""
        out: list[p4r.TableEntry] = []
        reported: dict[tuple[int, Ident], int] = {}
        for table in self.schema.tables.values():
            state, hits = self.running.tables[table.name], table.layout.hit_map
            if hits is None:
                continue
            for ident in state.timed:
                entry = state.entries[ident]
                last = self._reported.get((table.id, ident), 0)
                idle = min(self.running.idle_ns(hits, entry.cell), now_ns - last)
                if idle >= entry.timeout_ns:
                    last = now_ns
                    out.append(table.write_entry(entry))
                if last:
                    reported[table.id, ident] = last
        self._reported = reported
        return out
