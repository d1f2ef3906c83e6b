"""One switch behind P4Runtime: its pipeline configuration, its entries, its counters.

Not for concurrent use: the server calls it from its event loop only.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from finsy.proto import p4r

from switches.ebpf.compiled import Compiled
from switches.ebpf.datapath import Datapath, SharedMaps
from switches.ebpf.entries import (
    Change,
    ExistsError,
    NotThereError,
    TableFullError,
    TableState,
)
from switches.ebpf.p4rt.schema import Schema, TableSchema
from switches.ebpf.p4rt.status import Code, P4RuntimeError
from switches.ebpf.p4rt.uninterrupted import uninterrupted
from switches.ebpf.tc import TrafficControl, ifindex_of
from switches.target import SwitchSpec

FEW_CHANGES = 16

Counts = tuple[int, int]  # packets, bytes


@dataclass(frozen=True)
class Config:
    """A pipeline configuration as it was set."""

    message: p4r.ForwardingPipelineConfig
    schema: Schema
    compiled: Compiled


@dataclass
class WriteResult:
    """What became of a Write: an error or None per update, and when maps were changed.

    The two stamps are CLOCK_MONOTONIC in nanoseconds, right before the first and right after the last map
    update; without any, they are the same moment.
    """

    errors: list[P4RuntimeError | None]
    before_ns: int
    after_ns: int


@dataclass
class _Update:
    changes: list[Change] = field(default_factory=list)
    error: P4RuntimeError | None = None


def _map_error(exc: OSError) -> P4RuntimeError:
    if exc.errno in (errno.E2BIG, errno.ENOSPC, errno.ENOMEM):
        return P4RuntimeError(Code.RESOURCE_EXHAUSTED, f"map update: {exc.strerror}")
    return P4RuntimeError(Code.INTERNAL, f"map update: {exc.strerror}")


class Device:
    """A switch of a given spec, at first without a pipeline: then every frame goes to the host as before."""

    def __init__(self, spec: SwitchSpec, shared: SharedMaps) -> None:
        self.spec = spec
        self.config: Config | None = None
        self.saved: Config | None = None
        self.datapath: Datapath | None = None
        self.tables: dict[str, TableState] = {}
        self._shared = shared
        # What a counter read when it was last set: the kernel's cell only ever counts up.
        self._base: dict[tuple[int, int], Counts] = {}

    # -- pipeline ------------------------------------------------------------------------------------------

    def sweep(self, tc: TrafficControl) -> None:
        """Take whatever was left on the ports by another process off them. Raises BadInputError."""
        for interface in self.spec.ports.values():
            tc.remove_clsact(ifindex_of(interface))

    def load(self, compiled: Compiled, tc: TrafficControl) -> None:
        """Put a program onto the ports in the place of the one before. All tables are as the program says."""
        datapath = Datapath(self.spec.name, compiled, self.spec.ports, self._shared)
        tables = {t.name: TableState(t, compiled.plan.tables[t.name]) for t in compiled.program.tables()}
        try:
            for state in tables.values():
                for change in state.setup():
                    assert change.value is not None
                    datapath.maps[change.map].update(change.key, change.value)
            datapath.attach(tc, replace=self.datapath is not None)
        except BaseException:
            datapath.close_descriptors()
            raise
        if self.datapath is not None:
            self.datapath.close_descriptors()
        self.datapath, self.tables, self._base = datapath, tables, {}

    def commit(self, config: Config, tc: TrafficControl) -> None:
        """Make a configuration the one that forwards."""
        self.load(config.compiled, tc)
        self.config = config

    def unload(self, tc: TrafficControl) -> None:
        """Take the program off the ports and forget it."""
        if self.datapath is not None:
            self.datapath.detach(tc)
            self.datapath.close_descriptors()
            self.datapath = None

    def ready(self) -> tuple[Config, Datapath]:
        """The configuration and what runs it. Raises P4RuntimeError FAILED_PRECONDITION without one."""
        if self.config is None or self.datapath is None:
            raise P4RuntimeError(
                Code.FAILED_PRECONDITION, "No forwarding pipeline config set for this device"
            )
        return self.config, self.datapath

    # -- writing -------------------------------------------------------------------------------------------

    def write(self, updates: Sequence[p4r.Update]) -> WriteResult:
        """Do updates in order. All are checked first, so that the map updates come close together."""
        config, datapath = self.ready()
        plans = [self._plan(config.schema, datapath, u) for u in updates]
        steps = [(plan, change) for plan in plans if plan.error is None for change in plan.changes]
        maps = datapath.maps
        if steps:
            # The first call after a pause is slower by the caches it has to fill; that one is not measured.
            first = steps[0][1]
            maps[first.map].lookup(first.key)
        # Not for long writes: those program a switch, and no one asks for their moment to the microsecond.
        with uninterrupted() if len(steps) <= FEW_CHANGES else nullcontext():
            before = time.monotonic_ns()
            for plan, change in steps:
                try:
                    if change.value is None:
                        maps[change.map].delete(change.key)
                    else:
                        maps[change.map].update(change.key, change.value)
                except OSError as exc:
                    plan.error = _map_error(exc)
                    change.undo()
            after = time.monotonic_ns()
        return WriteResult([p.error for p in plans], before, after)

    def _plan(self, schema: Schema, datapath: Datapath, update: p4r.Update) -> _Update:
        plan = _Update()
        try:
            match update.entity.WhichOneof("entity"):
                case "table_entry":
                    self._plan_entry(schema, datapath, update.type, update.entity.table_entry, plan)
                case "counter_entry":
                    self._need_modify(update)
                    self._write_counter(schema, datapath, update.entity.counter_entry)
                case "direct_counter_entry":
                    self._need_modify(update)
                    entry = update.entity.direct_counter_entry
                    self._write_direct(schema, datapath, entry.table_entry, entry.data)
                case None:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without an entity")
                case other:
                    raise P4RuntimeError(
                        Code.UNIMPLEMENTED, f"writing {other} is not supported by this target"
                    )
        except P4RuntimeError as exc:
            plan.error = exc
        return plan

    @staticmethod
    def _need_modify(update: p4r.Update) -> None:
        if update.type != p4r.Update.MODIFY:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a counter can only be modified")

    def _plan_entry(
        self,
        schema: Schema,
        datapath: Datapath,
        kind: p4r.Update.Type.ValueType,
        message: p4r.TableEntry,
        plan: _Update,
    ) -> None:
        table = schema.table(message.table_id)
        state = self.tables[table.name]
        if message.is_default_action:
            plan.changes.append(self._plan_default(table, state, kind, message))
            return
        if table.const_table or state.constant:
            raise P4RuntimeError(Code.PERMISSION_DENIED, f"the entries of table {table.name} are constant")
        if not table.fields:
            raise P4RuntimeError(
                Code.INVALID_ARGUMENT, f"table {table.name} has no key: only its default can be set"
            )
        entry = table.read_entry(message, with_action=kind != p4r.Update.DELETE)
        try:
            if kind == p4r.Update.INSERT:
                plan.changes.append(state.insert(entry))
                self._start_counter(datapath, table, state.entries[entry.match, entry.priority].cell)
            elif kind == p4r.Update.MODIFY:
                plan.changes.append(state.modify(entry))
            elif kind == p4r.Update.DELETE:
                plan.changes.append(state.delete((entry.match, entry.priority)))
                return
            else:
                raise P4RuntimeError(Code.INVALID_ARGUMENT, "an update without a type")
        except ExistsError as exc:
            raise P4RuntimeError(Code.ALREADY_EXISTS, f"table {table.name} has that entry already") from exc
        except NotThereError as exc:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry") from exc
        except TableFullError as exc:
            limit = table.layout.capacity
            raise P4RuntimeError(
                Code.RESOURCE_EXHAUSTED, f"table {table.name} is full ({limit} entries)"
            ) from exc
        if message.HasField("counter_data"):
            self._write_direct(schema, datapath, message, message.counter_data)

    def _plan_default(
        self, table: TableSchema, state: TableState, kind: p4r.Update.Type.ValueType, message: p4r.TableEntry
    ) -> Change:
        if kind != p4r.Update.MODIFY:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a default entry can only be modified")
        if message.match or message.priority:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a default entry takes no match and no priority")
        if table.const_default:
            raise P4RuntimeError(
                Code.PERMISSION_DENIED, f"the default action of table {table.name} is constant"
            )
        action = table.read_action(message.action, default=True) if message.HasField("action") else None
        return state.set_default(action, message.metadata)

    # -- counters ------------------------------------------------------------------------------------------

    def _start_counter(self, datapath: Datapath, table: TableSchema, cell: int) -> None:
        """Let the counter of a new entry begin at zero, whatever its cell has counted for another."""
        index = table.layout.counter_map
        if index is not None:
            self._base[index, cell] = datapath.cell(index, table.layout.capacity, cell)

    def _set(self, datapath: Datapath, index: int, cells: int, cell: int, data: p4r.CounterData) -> None:
        packets, octets = datapath.cell(index, cells, cell)
        self._base[index, cell] = (packets - data.packet_count, octets - data.byte_count)

    def _shown(self, index: int, cell: int, raw: Counts) -> p4r.CounterData:
        packets, octets = self._base.get((index, cell), (0, 0))
        return p4r.CounterData(packet_count=raw[0] - packets, byte_count=raw[1] - octets)

    def _write_counter(self, schema: Schema, datapath: Datapath, entry: p4r.CounterEntry) -> None:
        counter = schema.counters.get(entry.counter_id)
        if counter is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no counter {entry.counter_id}")
        if not entry.HasField("data"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a counter entry without data")
        cells = range(counter.size)
        if entry.HasField("index"):
            if not 0 <= entry.index.index < counter.size:
                raise P4RuntimeError(Code.OUT_OF_RANGE, f"{counter.name} has no index {entry.index.index}")
            cells = range(entry.index.index, entry.index.index + 1)
        for cell in cells:
            self._set(datapath, counter.map, counter.size, cell, entry.data)

    def _write_direct(
        self, schema: Schema, datapath: Datapath, message: p4r.TableEntry, data: p4r.CounterData
    ) -> None:
        table = schema.table(message.table_id)
        index = table.layout.counter_map
        if index is None or not table.counter_id:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} has no direct counter")
        if message.is_default_action:
            raise P4RuntimeError(
                Code.UNIMPLEMENTED, "a default entry has no counter on this target, as in BMv2"
            )
        entry = self.tables[table.name].entries.get((table.read_match(list(message.match)), message.priority))
        if entry is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"table {table.name} has no such entry")
        self._set(datapath, index, table.layout.capacity, entry.cell, data)

    # -- reading -------------------------------------------------------------------------------------------

    def read(self, entities: Sequence[p4r.Entity]) -> Iterator[p4r.Entity]:
        """Everything that the given entities ask for; what they leave out is a wildcard."""
        config, datapath = self.ready()
        for wanted in entities:
            match wanted.WhichOneof("entity"):
                case "table_entry":
                    yield from self._read_tables(config.schema, datapath, wanted.table_entry)
                case "counter_entry":
                    yield from self._read_counters(config.schema, datapath, wanted.counter_entry)
                case "direct_counter_entry":
                    yield from self._read_direct(config.schema, datapath, wanted.direct_counter_entry)
                case "register_entry":
                    yield from self._read_registers(config.schema, datapath, wanted.register_entry)
                case None:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, "a read without an entity")
                case other:
                    raise P4RuntimeError(
                        Code.UNIMPLEMENTED, f"reading {other} is not supported by this target"
                    )

    def _read_tables(
        self, schema: Schema, datapath: Datapath, wanted: p4r.TableEntry
    ) -> Iterator[p4r.Entity]:
        tables = [schema.table(wanted.table_id)] if wanted.table_id else list(schema.tables.values())
        if not wanted.table_id and wanted.match:
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "a match without a table")
        for table in tables:
            if wanted.is_default_action:
                yield from self._read_default(table)
                continue
            for entry in self._selected(table, datapath, wanted, wanted.HasField("counter_data")):
                yield p4r.Entity(table_entry=entry)

    def _read_default(self, table: TableSchema) -> Iterator[p4r.Entity]:
        state = self.tables[table.name]
        if state.default is None:
            return
        entry = p4r.TableEntry(table_id=table.id, is_default_action=True, metadata=state.default_metadata)
        table.write_action(state.default, entry)
        yield p4r.Entity(table_entry=entry)

    def _selected(
        self, table: TableSchema, datapath: Datapath, wanted: p4r.TableEntry, with_counter: bool
    ) -> Iterator[p4r.TableEntry]:
        """The entries of a table that a wildcard lets through, with their counters where asked for."""
        state = self.tables[table.name]
        entries = list(state.entries.values())
        if wanted.match:
            match = table.read_match(list(wanted.match))
            entries = [e for e in entries if e.match == match]
        if wanted.priority:
            entries = [e for e in entries if e.priority == wanted.priority]
        if wanted.HasField("action"):
            entries = [
                e
                for e in entries
                if table.by_number[e.action.layout.number].id == wanted.action.action.action_id
            ]
        if wanted.metadata:
            entries = [e for e in entries if e.metadata == wanted.metadata]
        index = table.layout.counter_map if with_counter and table.counter_id else None
        if not entries:
            return
        raw = None
        if index is not None and len(entries) > 1:
            raw = datapath.cells(index, table.layout.capacity)
        for entry in entries:
            out = table.write_entry(entry)
            if index is not None:
                counts = raw[entry.cell] if raw else datapath.cell(index, table.layout.capacity, entry.cell)
                out.counter_data.CopyFrom(self._shown(index, entry.cell, counts))
            yield out

    def _read_counters(
        self, schema: Schema, datapath: Datapath, wanted: p4r.CounterEntry
    ) -> Iterator[p4r.Entity]:
        if wanted.counter_id and wanted.counter_id not in schema.counters:
            raise P4RuntimeError(Code.NOT_FOUND, f"no counter {wanted.counter_id}")
        for counter_id, counter in schema.counters.items():
            if wanted.counter_id not in (0, counter_id):
                continue
            if wanted.HasField("index"):
                at = wanted.index.index
                if not 0 <= at < counter.size:
                    raise P4RuntimeError(Code.OUT_OF_RANGE, f"{counter.name} has no index {at}")
                cells = [(at, datapath.cell(counter.map, counter.size, at))]
            else:
                cells = list(enumerate(datapath.cells(counter.map, counter.size)))
            for at, raw in cells:
                entry = p4r.CounterEntry(counter_id=counter_id, index=p4r.Index(index=at))
                entry.data.CopyFrom(self._shown(counter.map, at, raw))
                yield p4r.Entity(counter_entry=entry)

    @staticmethod
    def _read_registers(
        schema: Schema, datapath: Datapath, wanted: p4r.RegisterEntry
    ) -> Iterator[p4r.Entity]:
        # Only for reading: all cells are one value of a map, and the program writes others meanwhile.
        if wanted.register_id and wanted.register_id not in schema.registers:
            raise P4RuntimeError(Code.NOT_FOUND, f"no register {wanted.register_id}")
        for register_id, register in schema.registers.items():
            if wanted.register_id not in (0, register_id):
                continue
            indexes = range(register.size)
            if wanted.HasField("index"):
                if not 0 <= wanted.index.index < register.size:
                    raise P4RuntimeError(
                        Code.OUT_OF_RANGE, f"{register.name} has no index {wanted.index.index}"
                    )
                indexes = range(wanted.index.index, wanted.index.index + 1)
            for at, value in zip(indexes, datapath.register_cells(register, indexes), strict=True):
                entry = p4r.RegisterEntry(register_id=register_id, index=p4r.Index(index=at))
                entry.data.bitstring = value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")
                yield p4r.Entity(register_entry=entry)

    def _read_direct(
        self, schema: Schema, datapath: Datapath, wanted: p4r.DirectCounterEntry
    ) -> Iterator[p4r.Entity]:
        table_id = wanted.table_entry.table_id
        tables = [schema.table(table_id)] if table_id else list(schema.tables.values())
        for table in tables:
            if not table.counter_id:
                if table_id:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} has no direct counter")
                continue
            for entry in self._selected(table, datapath, wanted.table_entry, with_counter=True):
                data = entry.counter_data
                out = p4r.DirectCounterEntry(table_entry=entry)
                out.data.CopyFrom(data)
                out.table_entry.ClearField("counter_data")
                yield p4r.Entity(direct_counter_entry=out)
