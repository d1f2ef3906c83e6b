"""The state that the compiler's modules share while they write the BPF function of a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mrclab.switches.ebpf.codegen.analysis.scratch_layout import Layout
from mrclab.switches.ebpf.codegen.backend.asm import I32, Asm, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.expressions import Machine
from mrclab.switches.ebpf.plan import (
    COUNTER_BYTES,
    CounterLayout,
    DigestLayout,
    MeterLayout,
    ProfileLayout,
    RegisterLayout,
    TableLayout,
    ValueSetLayout,
    counter_chunk,
)
from mrclab.switches.v1model.expressions import FieldRef
from mrclab.switches.v1model.program import Program

STANDARD = "standard_metadata"


@dataclass(frozen=True)
class Recirculation:
    """Values by which the code recognises a frame that enters the pipeline again (see `recirculation`).

    `identity` is the index of a map with the mark of such frames and the program's number. `mark` and
    `ifindex` belong to the current frame.
    """

    identity: int
    mark: Value
    ifindex: Value


@dataclass
class CodegenContext:
    """The BPF function that is being written: its code, its maps, and values that it loads at its start."""

    program: Program
    layout: Layout
    asm: Asm
    machine: Machine
    ctx: Value
    length: Value  # i32: bytes of the frame when it was received
    zero_key: Value  # address of a u32 that is 0, as the key of a map with one value
    index_key: Value  # address of a u32 into which the code writes the key of a look-up
    drop: object  # the basic block that drops the frame
    pool: MapPool
    tables: dict[str, TableLayout] = field(default_factory=dict)
    counters: dict[str, CounterLayout] = field(default_factory=dict)
    registers: dict[str, RegisterLayout] = field(default_factory=dict)
    profiles: dict[str, ProfileLayout] = field(default_factory=dict)
    meters: dict[str, MeterLayout] = field(default_factory=dict)
    digests: dict[int, DigestLayout] = field(default_factory=dict)
    value_sets: dict[str, ValueSetLayout] = field(default_factory=dict)
    ring_map: int | None = None
    lock_map: int | None = None
    queue_map: int | None = None  # the map with the state of the ports' queues
    truncates: bool = False  # True if the program has a statement that truncates frames
    frame_length: Value = None  # i32: present length of the frame in bytes
    wrong: Any = None  # the block for a failed assertion; None: use `drop`
    copies_block: Any = None  # the block that makes copies, if the program multicasts or clones
    recirculation: Recirculation | None = None  # set if the program has frames that enter again

    def count(self, map_index: int, cells: int, index: Value) -> None:
        """Write code that counts the frame in a counter cell. An index outside the array has no effect."""
        asm = self.asm
        b = asm.b
        chunk = counter_chunk(cells)
        inside, found, done = (asm.block(n) for n in ("count.inside", "count.found", "count.done"))
        width = index.type.width
        if (1 << width) <= cells:
            b.branch(inside)
        else:
            b.cbranch(b.icmp_unsigned("<", index, const(width, cells)), inside, done)
        asm.enter(inside)
        key = self.zero_key
        index = asm.forget(asm.fit(index, 64))
        if cells > chunk:
            key = self.index_key
            asm.store(asm.fit(b.lshr(index, const(64, chunk.bit_length() - 1)), 32), key, 4)
        base = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(map_index), key)
        b.cbranch(asm.is_null(base), done, found)
        asm.enter(found)
        cell = asm.at(base, b.mul(b.and_(index, const(64, chunk - 1)), const(64, COUNTER_BYTES)))
        asm.store(b.add(asm.load(cell, 64, 8), const(64, 1)), cell, 8)
        total = asm.at(cell, 8)
        asm.store(b.add(asm.load(total, 64, 8), asm.fit(self.length, 64)), total, 8)
        b.branch(done)
        asm.enter(done)

    def header_bytes(self, header: str) -> Value:
        """Return the size of a header in the frame, in bytes, as an i32."""
        size = const(32, (self.program.headers[header].type.bits + 7) // 8)
        slot = self.layout.varbits.get(header)
        if slot is None:
            return size
        return self.asm.b.add(size, self.asm.load(self.asm.at(self.machine.scratch, slot.length), 32, 4))

    def varbit_bytes(self, header: str) -> Value:
        """Return the length of a header's varbit field in bytes (at least 1), as an i64.

        A mask limits the value, because the kernel's verifier must know the largest value. The caller first
        checks the length, and then calls any BPF helper function. Without this call, LLVM concludes from the
        check that the mask has no effect, and removes the mask.
        """
        asm, slot = self.asm, self.layout.varbits[header]
        length = asm.fit(asm.load(asm.at(self.machine.scratch, slot.length), 32, 4), 64)
        return asm.b.add(asm.b.and_(asm.b.sub(length, const(64, 1)), const(64, slot.room - 1)), const(64, 1))

    def lengthen(self, by: Value) -> None:
        """Add `by` to the packet_length of egress, because a header was added or removed."""
        if self.has_standard("packet_length"):
            asm = self.asm
            cell = asm.at(self.machine.scratch, self.layout.length)
            asm.store(asm.b.add(asm.load(cell, 32, 4), by), cell, 4)

    def set_standard(self, name: str, value: Value) -> None:
        """Write code that sets a field of standard_metadata, if the program uses the field."""
        ref = FieldRef(STANDARD, name)
        if ref in self.layout.slots:
            width = self.program.field(ref).width
            slot = self.layout.slots[ref]
            bits = self.asm.fit(self.asm.fit(value, width), slot.size * 8)
            self.asm.store(bits, self.asm.at(self.machine.scratch, slot.offset), min(slot.size, 8))

    def has_standard(self, name: str) -> bool:
        """Return True if the program uses this field of standard_metadata."""
        return FieldRef(STANDARD, name) in self.layout.slots


def key_cell(asm: Asm, value: int | None) -> Value:
    """Allocate a u32 on the stack for a map key. Call this function only in the entry block."""
    cell = asm.b.alloca(I32)
    cell.align = 4
    if value is not None:
        asm.store(const(32, value), cell, 4)
    return cell
