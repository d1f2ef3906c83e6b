"""Counters and meters, both indirect and direct (specification, section 9.4), and registers (9.7)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.entities.tables import TableEntries
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import need_modify, read_rates, write_rates
from mrclab.switches.ebpf.runtime.transaction import Transaction


class CounterEntries:
    """Write and read cells of indirect counters."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set one cell of a counter, or all cells."""
        need_modify(update, "a counter")
        entry = update.entity.counter_entry
        counter = self.schema.counters.get(entry.counter_id)
        if counter is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no counter {entry.counter_id}")
        cells = self.schema.cells(counter.name, counter.size, entry)
        if not entry.HasField("data"):  # a write without data does not change the counter
            return
        counts = entry.data.packet_count, entry.data.byte_count
        for cell in cells:
            self.running.counters.set(counter.map, counter.size, cell, counts, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one cell, all cells of a counter, or all cells of all counters."""
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
    """Write and read the counters of table entries."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.tables = TableEntries(schema, running)

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set the counter of a table entry."""
        need_modify(update, "a counter")
        entry = update.entity.direct_counter_entry
        if entry.HasField("data"):
            self.tables.set_counter(entry.table_entry, entry.data, tx)
        else:
            self.tables.counter_of(entry.table_entry)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the counters of the requested table entries."""
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


class MeterEntries:
    """Write and read cells of indirect meters."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Configure one cell of a meter, or all cells."""
        need_modify(update, "a meter")
        entry = update.entity.meter_entry
        meter = self.schema.meters.get(entry.meter_id)
        if meter is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no meter {entry.meter_id}")
        rates = read_rates(entry.config) if entry.HasField("config") else None
        for cell in self.schema.cells(meter.name, meter.size, entry):
            self.running.meters[meter.name].set(cell, rates, tx)
            if entry.HasField("counter_data"):
                self.running.counters.set_colours(meter, cell, entry.counter_data, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one cell, all cells of a meter, or all cells of all meters."""
        wanted = entity.meter_entry
        if wanted.meter_id and wanted.meter_id not in self.schema.meters:
            raise P4RuntimeError(Code.NOT_FOUND, f"no meter {wanted.meter_id}")
        for meter_id, meter in self.schema.meters.items():
            if wanted.meter_id not in (0, meter_id):
                continue
            for at in self.schema.cells(meter.name, meter.size, wanted):
                out = p4r.MeterEntry(meter_id=meter_id, index=p4r.Index(index=at))
                rates = self.running.meters[meter.name].rates.get(at)
                if rates is not None:
                    write_rates(rates, out.config)
                if wanted.HasField("counter_data"):
                    out.counter_data.CopyFrom(self.running.counters.read_colours(meter, at))
                yield p4r.Entity(meter_entry=out)


class DirectMeterEntries:
    """Write and read the meters of table entries."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running
        self.tables = TableEntries(schema, running)

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Configure the meter of a table entry."""
        need_modify(update, "a meter")
        entry = update.entity.direct_meter_entry
        rates = read_rates(entry.config) if entry.HasField("config") else None
        meter, cell = self.tables.meter_of(entry.table_entry)
        meter.set(cell, rates, tx)
        if entry.HasField("counter_data"):
            self.running.counters.set_colours(meter.layout, cell, entry.counter_data, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the meters of the requested table entries."""
        wanted = p4r.TableEntry()
        wanted.CopyFrom(entity.direct_meter_entry.table_entry)
        wanted.meter_config.SetInParent()
        if entity.direct_meter_entry.HasField("counter_data"):
            wanted.meter_counter_data.SetInParent()
        for table in self.schema.tables_of(wanted.table_id):
            if not table.meter_id:
                if wanted.table_id:
                    raise P4RuntimeError(Code.INVALID_ARGUMENT, f"table {table.name} has no direct meter")
                continue
            for entry in self.tables.keyed(table, wanted):
                out = p4r.DirectMeterEntry()
                out.table_entry.CopyFrom(entry)
                out.table_entry.ClearField("meter_config")
                out.table_entry.ClearField("meter_counter_data")
                if entry.HasField("meter_config"):
                    out.config.CopyFrom(entry.meter_config)
                if entry.HasField("meter_counter_data"):
                    out.counter_data.CopyFrom(entry.meter_counter_data)
                yield p4r.Entity(direct_meter_entry=out)


class RegisterEntries:
    """Write and read cells of registers. A write changes the cell at once, and an undo restores it."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set one cell of a register, or all cells."""
        need_modify(update, "a register")
        entry = update.entity.register_entry
        register = self.schema.registers.get(entry.register_id)
        if register is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no register {entry.register_id}")
        cells = self.schema.cells(register.name, register.size, entry)
        spec = self.schema.register_types[entry.register_id]
        value = self.schema.types.read(spec, entry.data, register.width, register.name)
        datapath = self.running.datapath
        for cell in cells:
            (before,) = datapath.register_cells(register, range(cell, cell + 1))
            tx.on_undo(lambda c=cell, b=before: datapath.set_register_cell(register, c, b))  # type: ignore[misc]
            datapath.set_register_cell(register, cell, value)
            tx.cells += 1

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one cell, all cells of a register, or all cells of all registers."""
        wanted = entity.register_entry
        if wanted.register_id and wanted.register_id not in self.schema.registers:
            raise P4RuntimeError(Code.NOT_FOUND, f"no register {wanted.register_id}")
        for register_id, register in self.schema.registers.items():
            if wanted.register_id not in (0, register_id):
                continue
            cells = self.schema.cells(register.name, register.size, wanted)
            values = self.running.datapath.register_cells(register, cells)
            for at, value in zip(cells, values, strict=True):
                entry = p4r.RegisterEntry(register_id=register_id, index=p4r.Index(index=at))
                self.schema.types.write(self.schema.register_types[register_id], iter((value,)), entry.data)
                yield p4r.Entity(register_entry=entry)
