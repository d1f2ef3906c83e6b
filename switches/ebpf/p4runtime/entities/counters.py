"""CounterEntry and DirectCounterEntry (specification, section 9.4)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.entities.tables import TableEntries
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import need_modify
from mrclab.switches.ebpf.runtime.transaction import Transaction


class CounterEntries:
    """Writes and reads cells of indirect counters."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set one cell, or all."""
        need_modify(update, "a counter")
        entry = update.entity.counter_entry
        counter = self.schema.counters.get(entry.counter_id)
        if counter is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no counter {entry.counter_id}")
        cells = self.schema.cells(counter.name, counter.size, entry)
        if not entry.HasField("data"):  # leaves it as it is
            return
        counts = entry.data.packet_count, entry.data.byte_count
        for cell in cells:
            self.running.counters.set(counter.map, counter.size, cell, counts, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the requested cells, one or all."""
        wanted = entity.counter_entry
        if wanted.counter_id and wanted.counter_id not in self.schema.counters:
            raise P4RuntimeError(Code.NOT_FOUND, f"no counter {wanted.counter_id}")
        if not wanted.counter_id and wanted.HasField("index"):
            raise P4RuntimeError(Code.INVALID_ARGUMENT, "an index without a counter")
        for counter_id, counter in self.schema.counters.items():
            if wanted.counter_id not in (0, counter_id):
                continue
            cells = self.schema.cells(counter.name, counter.size, wanted)
            if len(cells) == 1:
                data = [self.running.counters.read(counter.map, counter.size, cells[0])]
            else:
                data = self.running.counters.read_all(counter.map, counter.size)
            for at, counts in zip(cells, data, strict=True):
                entry = p4r.CounterEntry(counter_id=counter_id, index=p4r.Index(index=at), data=counts)
                yield p4r.Entity(counter_entry=entry)


class DirectCounterEntries:
    """Writes and reads the counters of table entries."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.tables = TableEntries(schema, running)

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set the counter of an entry."""
        need_modify(update, "a counter")
        entry = update.entity.direct_counter_entry
        if entry.HasField("data"):
            self.tables.set_counter(entry.table_entry, entry.data, tx)
        else:
            self.tables.counter_of(entry.table_entry)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the requested cells, one or all."""
        wanted = entity.direct_counter_entry.table_entry
        for table in self.schema.tables_of(wanted.table_id):
            if not table.counter_id:
                if wanted.table_id:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} has no direct counter")
                continue
            asked = p4r.TableEntry()
            asked.CopyFrom(wanted)
            asked.counter_data.SetInParent()
            for entry in self.tables.keyed(table, asked):
                out = p4r.DirectCounterEntry(data=entry.counter_data)
                out.table_entry.CopyFrom(entry)
                out.table_entry.ClearField("counter_data")
                yield p4r.Entity(direct_counter_entry=out)
