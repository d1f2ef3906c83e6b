"""RegisterEntry (specification, section 9.7)."""

from __future__ import annotations

from collections.abc import Iterator

from finsy.proto import p4r

from mrclab.switches.ebpf.p4runtime.entities.running import Running
from mrclab.switches.ebpf.p4runtime.schema import Schema
from mrclab.switches.ebpf.p4runtime.status import Code, P4RuntimeError
from mrclab.switches.ebpf.p4runtime.values import decode, encode, need_modify
from mrclab.switches.ebpf.runtime.transaction import Transaction


class RegisterEntries:
    """Writes and reads cells of registers. A write takes effect when it is planned, which is right before."""

    def __init__(self, schema: Schema, running: Running) -> None:
        self.schema = schema
        self.running = running

    def write(self, update: p4r.Update, tx: Transaction) -> None:
        """Set one cell, or all."""
        need_modify(update, "a register")
        entry = update.entity.register_entry
        register = self.schema.registers.get(entry.register_id)
        if register is None:
            raise P4RuntimeError(Code.NOT_FOUND, f"no register {entry.register_id}")
        cells = self.schema.cells(register.name, register.size, entry)
        if entry.data.WhichOneof("data") != "bitstring":
            raise P4RuntimeError(Code.INVALID_ARGUMENT, f"{register.name} takes a bit string")
        value = decode(entry.data.bitstring, register.width, register.name)
        datapath = self.running.datapath
        for cell in cells:
            (before,) = datapath.register_cells(register, range(cell, cell + 1))
            tx.on_undo(lambda c=cell, b=before: datapath.set_register_cell(register, c, b))  # type: ignore[misc]
            datapath.set_register_cell(register, cell, value)

    def read(self, entity: p4r.Entity) -> Iterator[p4r.Entity]:
        """Yield one cell, all cells of a register, or of all registers."""
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
                entry.data.bitstring = encode(value)
                yield p4r.Entity(register_entry=entry)
