"""MeterEntry and DirectMeterEntry (specification, section 9.4)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.rates import read_rates, write_rates
from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.entities.tables import TableEntries
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import need_modify
from mrclab.switches.ebpf.runtime.transaction import Transaction


class MeterEntries:
    """Writes and reads cells of indirect meters."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Configure one cell, or all."""
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
        """Yield the requested meters, one or all."""
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
    """Writes and reads the meters of table entries."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running
        self.tables = TableEntries(schema, running)

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Configure the meter of an entry."""
        need_modify(update, "a meter")
        entry = update.entity.direct_meter_entry
        rates = read_rates(entry.config) if entry.HasField("config") else None
        meter, cell = self.tables.meter_of(entry.table_entry)
        meter.set(cell, rates, tx)
        if entry.HasField("counter_data"):
            self.running.counters.set_colours(meter.layout, cell, entry.counter_data, tx)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield the requested meters, one or all."""
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
