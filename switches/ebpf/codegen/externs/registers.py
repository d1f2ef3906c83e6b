"""Registers: reading and writing cells, and which actions need a lock for it."""

from __future__ import annotations

from mrclab.switches.ebpf.codegen.backend.asm import Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.v1model.declarations import Action
from mrclab.switches.v1model.expressions import Expr, FieldRef, Name, Primitive

# Register primitives, and which argument names the array.
_REGISTER = {"register_read": 1, "register_write": 0}


def register_ops(action: Action) -> list[Primitive]:
    """Return the statements of an action that access registers."""
    return [p for p in action.primitives if p.op in _REGISTER]


class RegisterStatements:
    """Writes accesses to registers."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm

    def needs_lock(self, action: Action) -> bool:
        """Return True if another CPU must not interleave with an action's register accesses."""
        ops = register_ops(action)
        names = [a.name for p in ops if isinstance(a := p.args[_REGISTER[p.op]], Name)]
        return len(ops) > 1 or any(self.gen.registers[n].cell_size > 8 for n in names)

    def _cell(self, e: Evaluator, array: Expr, at: Expr) -> tuple[int, int, Value, Value]:
        """Return the width of a register, the bits and address of its cell, and if the index is in range."""
        if not isinstance(array, Name) or array.name not in self.gen.registers:
            raise e.refuse("a register that is not declared")
        asm, b = self.asm, self.asm.b
        layout = self.gen.registers[array.name]
        _, _, (index,) = e.whole(at)
        index = asm.fit(index, max(index.type.width, 32))
        if index.type.width <= 64:  # LLVM can prove that a remainder is small, the verifier cannot
            index = asm.forget(asm.fit(index, 64))
        inside = b.icmp_unsigned("<", index, const(index.type.width, layout.size))
        offset = b.mul(asm.fit(index, 64), const(64, layout.cell_size))
        return layout.width, layout.cell_size * 8, inside, asm.at(asm.map_value(layout.map), offset)

    def read(self, e: Evaluator, p: Primitive) -> None:
        """Read a cell; a cell outside the array reads as 0."""
        target = p.args[0]
        if not isinstance(target, FieldRef):
            raise e.refuse("reading a register into something other than a field")
        asm, b = self.asm, self.asm.b
        _, bits, inside, cell = self._cell(e, p.args[1], p.args[2])
        start, there, done = b.block, asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        loaded = asm.load(cell, bits, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)
        value = b.phi(loaded.type)
        value.add_incoming(loaded, there)
        value.add_incoming(const(bits, 0), start)
        self.gen.machine.write(target, asm.fit(value, self.gen.program.field(target).width), p.source)

    def write(self, e: Evaluator, p: Primitive) -> None:
        """Write a cell; a cell outside the array is not written."""
        asm, b = self.asm, self.asm.b
        width, bits, inside, cell = self._cell(e, p.args[0], p.args[1])
        value = asm.fit(e.value(p.args[2], width), bits)
        there, done = asm.block("register.there"), asm.block("register.done")
        b.cbranch(inside, there, done)
        asm.enter(there)
        asm.store(value, cell, min(bits // 8, 8))
        b.branch(done)
        asm.enter(done)
