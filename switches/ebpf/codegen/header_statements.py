"""Write the code of statements about whole headers: assign, add and remove them, push and pop stacks."""

from __future__ import annotations

from dataclasses import replace

from mrclab.switches.ebpf.codegen.backend.asm import const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.v1model.expressions import Const, FieldRef, Name, Primitive


class HeaderStatements:
    """Write the code of statements about whole headers."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm

    def _mark_moved(self) -> None:
        """Write code that sets the flag `moved`: the deparser must write all headers again."""
        self.asm.store(const(8, 1), self.asm.at(self.gen.machine.scratch, self.gen.layout.moved))

    def _copy_header(self, to: str, origin: str) -> None:
        """Copy fields, raw bytes and validity of a header to another header of the same type."""
        layout, asm, memory = self.gen.layout, self.asm, self.gen.machine.scratch
        for name in self.gen.program.headers[to].field_by_name:
            target, source = (layout.slots.get(FieldRef(h, name)) for h in (to, origin))
            if target and source:
                asm.copy(memory, target.offset, memory, source.offset, target.size)
        if to in layout.raw and origin in layout.raw:
            size = (self.gen.program.headers[to].type.bits + 7) // 8
            asm.copy(memory, layout.raw[to], memory, layout.raw[origin], size)
            asm.copy(memory, layout.valid[to], memory, layout.valid[origin], 1)
        if to in layout.varbits:
            self._copy_varbit(to, origin)

    def _copy_varbit(self, to: str, origin: str) -> None:
        asm, memory = self.asm, self.gen.machine.scratch
        target, source = self.gen.layout.varbits[to], self.gen.layout.varbits[origin]
        asm.copy(memory, target.length, memory, source.length, 4)
        asm.copy(memory, target.offset, memory, source.offset, source.room)
        asm.zero(memory, target.offset + source.room, target.room - source.room)

    def assign_varbit(self, e: Evaluator, p: Primitive) -> None:
        """Copy a field of variable length, and its length."""
        to, origin = p.args
        program = self.gen.program
        if not isinstance(to, FieldRef) or not isinstance(origin, FieldRef):
            raise e.refuse("a variable-length field of a computed header")
        sizes = [v.size for ref in (to, origin) if (v := program.varbit(ref)) is not None]
        if len(sizes) != 2 or sizes[0] < sizes[1]:
            raise e.refuse("a variable-length field in something too small for it")
        self._mark_moved()
        self._copy_varbit(to.header, origin.header)

    def assign_headers(self, e: Evaluator, p: Primitive) -> None:
        """Copy a header union or a header stack, header by header."""
        to, origin = p.args
        if not isinstance(to, Name) or not isinstance(origin, Name):
            raise e.refuse("a computed header stack")
        for one, other in zip(
            self.gen.program.elements(to.name), self.gen.program.elements(origin.name), strict=True
        ):
            self.assign_header(e, replace(p, args=(Name("header", one), Name("header", other))))

    def assign_header(self, e: Evaluator, p: Primitive) -> None:
        """Copy a header if it is valid. Otherwise make the target header invalid."""
        to, origin = e.header(p.args[0]), e.header(p.args[1])
        asm = self.asm
        metadata = [self.gen.program.headers[h].metadata for h in (to, origin)]
        if any(metadata):
            if not all(metadata):
                raise e.refuse("copying between a header and metadata")
            self._copy_header(to, origin)  # metadata is always valid, and the deparser does not write it
            return
        self._mark_moved()
        copy, clear, done = asm.block("assign.copy"), asm.block("assign.clear"), asm.block("assign.done")
        asm.b.cbranch(self.gen.machine.read(FieldRef(origin, "$valid$"), p.source), copy, clear)
        asm.enter(copy)
        self._copy_header(to, origin)
        self.gen.machine.set_valid(to, True)
        asm.b.branch(done)
        asm.enter(clear)
        self.gen.machine.set_valid(to, False)
        asm.b.branch(done)
        asm.enter(done)

    def add_header(self, e: Evaluator, p: Primitive) -> None:
        """Make a header valid. As in BMv2, if the header was invalid, set all its fields to zero."""
        header = e.header(p.args[0])
        asm, b = self.asm, self.asm.b
        fresh, done = asm.block("add.fresh"), asm.block("add.done")
        b.cbranch(self.gen.machine.read(FieldRef(header, "$valid$"), p.source), done, fresh)
        asm.enter(fresh)
        self._mark_moved()
        self._reset_header(header)
        self.gen.machine.set_valid(header, True)
        self.gen.lengthen(self.gen.header_bytes(header))
        b.branch(done)
        asm.enter(done)

    def _reset_header(self, header: str) -> None:
        """Set a header's fields and raw bytes to zero."""
        layout, asm, memory = self.gen.layout, self.asm, self.gen.machine.scratch
        for ref, slot in layout.slots.items():
            if ref.header == header:
                asm.zero(memory, slot.offset, slot.size)
        asm.zero(memory, layout.raw[header], (self.gen.program.headers[header].type.bits + 7) // 8)
        if header in layout.varbits:  # as in BMv2, a variable-length field keeps its length
            asm.zero(memory, layout.varbits[header].offset, layout.varbits[header].room)

    def remove_header(self, e: Evaluator, p: Primitive) -> None:
        """Make a header invalid."""
        header, asm = e.header(p.args[0]), self.asm
        there, done = asm.block("remove.there"), asm.block("remove.done")
        asm.b.cbranch(self.gen.machine.read(FieldRef(header, "$valid$"), p.source), there, done)
        asm.enter(there)
        self._mark_moved()
        self.gen.machine.set_valid(header, False)
        self.gen.lengthen(asm.b.neg(self.gen.header_bytes(header)))
        asm.b.branch(done)
        asm.enter(done)

    def _stack(self, e: Evaluator, p: Primitive) -> tuple[tuple[str, ...], int]:
        """Return the headers of a stack, and by how many headers push or pop moves them."""
        stack, count = p.args[0], p.args[1]
        if not isinstance(stack, Name) or not isinstance(count, Const):
            raise e.refuse(f"primitive '{p.op}' by an amount that is not constant")
        headers, depth = self.gen.program.elements(stack.name), self.gen.program.depth(stack.name)
        self._mark_moved()
        return headers, count.value * (len(headers) // depth)

    def push(self, e: Evaluator, p: Primitive) -> None:
        """Move the elements of a stack towards its end. The first elements become invalid."""
        members, count = self._stack(e, p)
        for i in reversed(range(len(members))):
            if i >= count:
                self._copy_header(members[i], members[i - count])
            else:
                self._reset_header(members[i])
                self.gen.machine.set_valid(members[i], False)

    def pop(self, e: Evaluator, p: Primitive) -> None:
        """Move the elements of a stack towards its front. The last elements become invalid."""
        members, count = self._stack(e, p)
        for i in range(len(members)):
            if i + count < len(members):
                self._copy_header(members[i], members[i + count])
            else:
                self.gen.machine.set_valid(members[i], False)
