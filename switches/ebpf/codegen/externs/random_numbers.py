"""Write the code of random(): uniform numbers from the kernel's generator."""

from __future__ import annotations

from mrclab.switches.ebpf.codegen.backend.asm import Helper, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.v1model.expressions import Const, FieldRef, Primitive


class RandomStatements:
    """Write the code of random()."""

    def __init__(self, gen: CodegenContext) -> None:
        self.gen = gen
        self.asm = gen.asm
        self._drawn: dict[int, Value] = {}  # id of a statement -> random bits that were drawn for it

    def forget(self) -> None:
        """Clear the random bits that `draw` has drawn."""
        self._drawn.clear()

    def draw(self, p: Primitive) -> None:
        """Draw 64 random bits for a statement, before the spin lock is taken.

        While the lock is held, the kernel allows no call of a helper.
        """
        asm, b = self.asm, self.asm.b
        low, high = (b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF)) for _ in range(2))
        self._drawn[id(p)] = b.or_(b.shl(high, const(64, 32)), low)

    def write(self, e: Evaluator, p: Primitive) -> None:
        """Write code that sets a field to a uniform number from low to high, including both."""
        target, low, high = p.args
        asm, b = self.asm, self.asm.b
        if not isinstance(target, FieldRef):
            raise e.refuse("random into something other than a field")
        for bound in (low, high):
            if e.interval(bound).signed or e.interval(bound).bits > 64:
                raise e.refuse("random outside 0..2^64-1")
        if id(p) in self._drawn:
            draw = self._drawn[id(p)]
            draw = draw if e.interval(high).bits > 32 else b.and_(draw, const(64, 0xFFFFFFFF))
        else:
            draw = b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF))
        if e.interval(high).bits > 32 and id(p) not in self._drawn:
            second = b.and_(asm.helper(Helper.GET_PRANDOM_U32), const(64, 0xFFFFFFFF))
            draw = b.or_(b.shl(draw, const(64, 32)), second)
        field = self.gen.program.field(target)
        if isinstance(low, Const) and isinstance(high, Const):
            span = high.value - low.value + 1
            if span <= 0:
                raise e.refuse("random with its bounds the wrong way round")
            if span & (span - 1) == 0:
                number = b.and_(draw, const(64, span - 1))
            else:
                number = self._scale(draw, const(64, span), e.interval(high).bits)
            number = b.add(number, const(64, low.value))
        else:
            base = e.value(low, 64)
            span = b.add(b.sub(e.value(high, 64), base), const(64, 1))
            whole = b.icmp_unsigned("==", span, const(64, 0))
            some = b.select(whole, const(64, 1), span)
            scaled = self._scale(draw, some, e.interval(high).bits)
            number = b.add(b.select(whole, draw, scaled), base)
            # As in BMv2, if low is above high the field keeps its value.
            ordered = b.icmp_unsigned("<=", base, e.value(high, 64))
            kept = asm.fit(self.gen.machine.read(target, p.source), 64)
            number = b.select(ordered, number, kept)
        self.gen.machine.write(target, asm.fit(number, field.width), p.source)

    def _scale(self, draw: Value, span: Value, bits: int) -> Value:
        # Scale the random bits to 0..span-1. If the product has at most 64 bits, a multiplication is enough:
        # it is faster than a division, and its bias is below 2^-32.
        b = self.asm.b
        if bits < 32:
            return b.lshr(b.mul(draw, span), const(64, 32))
        return b.urem(draw, span)
