"""Write the code of expressions. BMv2 has integers of any size; LLVM needs integers of a fixed width.

`value(e, w)` returns expression e modulo 2^w. For an operation such as `+`, the operands need only w bits
too. Other operations, such as a comparison, need all bits of their operands. Then the operands are computed
with a width that can hold all their values (module `ranges`).
"""

from __future__ import annotations

from collections.abc import Sequence

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.analysis import ranges
from mrclab.switches.ebpf.codegen.analysis.ranges import Interval
from mrclab.switches.ebpf.codegen.analysis.scratch_layout import Layout, VarbitSlot
from mrclab.switches.ebpf.codegen.backend.asm import Asm, Value, const
from mrclab.switches.ebpf.plan import WIDEST
from mrclab.switches.v1model.expressions import (
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Op,
    Param,
    Source,
    StackField,
)
from mrclab.switches.v1model.program import Program

_COMPARE = {"==", "!=", "<", "<=", ">", ">="}
_LOGIC = {"and", "or", "not", "d2b", "valid", "valid_union"}


class Machine:
    """Write code that reads and writes the fields of the current frame in scratch memory."""

    def __init__(self, program: Program, layout: Layout, asm: Asm, scratch: Value) -> None:
        self.program = program
        self.layout = layout
        self.asm = asm
        self.scratch = scratch

    def read(self, ref: FieldRef, where: Source) -> Value:
        """Return the value of a field as an integer of the field's width."""
        asm = self.asm
        if ref.field == "$valid$":
            return asm.fit(asm.load(asm.at(self.scratch, self.layout.valid[ref.header]), 8), 1)
        slot = self.layout.slots.get(ref)
        if self.program.varbit(ref) is not None:
            raise UnsupportedError(f"variable-length field {ref.header}.{ref.field} as a number", str(where))
        if slot is None:
            raise UnsupportedError(f"field {ref.header}.{ref.field} of more than {WIDEST} bits", str(where))
        pointer = asm.at(self.scratch, slot.offset)
        return asm.fit(asm.load(pointer, slot.size * 8, min(slot.size, 8)), self.program.field(ref).width)

    def write(self, ref: FieldRef, value: Value, where: Source) -> None:
        """Set a field to a value of the same width, and mark its header as changed."""
        self.fill(ref, value, where)
        if ref.header in self.layout.dirty:
            self.asm.store(const(8, 1), self.asm.at(self.scratch, self.layout.dirty[ref.header]))

    def fill(self, ref: FieldRef, value: Value, where: Source) -> None:
        """Set a field, but do not mark its header as changed, because the frame has this value already."""
        slot = self.layout.slots.get(ref)
        if slot is None:
            raise UnsupportedError(f"writing {ref.header}.{ref.field}", str(where))
        pointer = self.asm.at(self.scratch, slot.offset)
        self.asm.store(self.asm.fit(value, slot.size * 8), pointer, min(slot.size, 8))

    def set_valid(self, header: str, valid: bool) -> None:
        """Make a header valid or invalid. A valid header makes the other headers of its union invalid."""
        self.asm.store(const(8, int(valid)), self.asm.at(self.scratch, self.layout.valid[header]))
        for rival in self.program.exclusive_with(header) if valid else ():
            self.asm.store(const(8, 0), self.asm.at(self.scratch, self.layout.valid[rival]))


def computed_index(expr: Expr | None) -> Expr | None:
    """Return the index of a header stack access if it is computed at run time, else None."""
    if isinstance(expr, Op) and expr.op == "dereference_header_stack" and not isinstance(expr.right, Const):
        return expr.right
    return None


class Evaluator:
    """Write the code of a statement's expressions. `where` is the statement's place in the P4 source."""

    def __init__(self, machine: Machine, where: Source, params: Sequence[tuple[int, Value]] = ()) -> None:
        self.m = machine
        self.asm = machine.asm
        self.where = where
        self.params = params  # (width, value) of each parameter of the action

    def refuse(self, construct: str) -> UnsupportedError:
        """Return an error for an unsupported construct in this statement. The caller raises it."""
        return UnsupportedError(construct, str(self.where))

    def interval(self, expr: Expr | None) -> Interval:
        """Return the interval of the values that an expression can have."""
        return ranges.interval(self._static(expr), self._leaf)

    def _leaf(self, leaf: FieldRef | Param | StackField | Op) -> Interval:
        if isinstance(leaf, Param):
            return ranges.unsigned(self.params[leaf.index][0])
        if isinstance(leaf, Op):
            found = self._static(leaf)
            leaf = found if isinstance(found, FieldRef) else self._fields(leaf)[0]
        if isinstance(leaf, StackField):
            raise self.refuse(f"field {leaf.field} of the last element of {leaf.stack}")
        if self.m.program.varbit(leaf) is not None:
            raise self.refuse(f"variable-length field {leaf.header}.{leaf.field} as a number")
        field = self.m.program.field(leaf)
        return ranges.signed(field.width) if field.signed else ranges.unsigned(field.width)

    def _static(self, expr: Expr | None) -> Expr:
        """Return the field of a field access if its header has no computed index, else the expression."""
        if isinstance(expr, Op) and expr.op == "access_field" and computed_index(expr.left) is None:
            return self._field_of(self.header(expr.left), expr.right)
        if expr is None:
            raise self.refuse("an expression without an operand")
        return expr

    def _field_of(self, header: str, index: Expr | None) -> FieldRef:
        if not isinstance(index, Const):
            raise self.refuse("a computed field")
        return FieldRef(header, self.m.program.headers[header].type.name_at(index.value))

    def _fields(self, access: Op) -> list[FieldRef]:
        """Return the accessed field of each element of a stack."""
        return [self._field_of(h, access.right) for h in self.elements(access.left)]

    def elements(self, expr: Expr | None) -> tuple[str, ...]:
        """Return all headers of the stack of which an expression selects an element."""
        stack = expr.left if isinstance(expr, Op) else None
        if not isinstance(stack, Name) or stack.name not in self.m.program.stacks:
            raise self.refuse("an element of something other than a header stack")
        return self.m.program.elements(stack.name)

    def choose(self, index: Expr, count: int) -> list[Value]:
        """Return an i1 for each of `count` elements of a stack: 1 if the computed index selects it."""
        bits, signed, (number,) = self.whole(index)
        last = (1 << (bits - signed)) - 1  # the largest index that these bits can hold
        equal = self.asm.b.icmp_unsigned
        return [equal("==", number, const(bits, i)) if i <= last else const(1, 0) for i in range(count)]

    def _element(self, access: Op, index: Expr, width: int) -> Value:
        """Return a field of the element at a computed index. Beyond the end of the stack, return 0."""
        fields, result = self._fields(access), const(width, 0)
        for here, ref in zip(self.choose(index, len(fields)), fields, strict=True):
            result = self.asm.b.select(here, self.value(ref, width), result)
        return result

    def header(self, expr: Expr | None) -> str:
        """Return the name of the header that an expression denotes."""
        if isinstance(expr, Name) and expr.kind == "header":
            return expr.name
        if isinstance(expr, Op) and expr.op == "dereference_header_stack":
            stack = expr.left
            if isinstance(stack, Name) and isinstance(expr.right, Const):
                members = self.m.program.stacks[stack.name].members
                if expr.right.value < len(members):
                    return members[expr.right.value]
                raise self.refuse(f"index {expr.right.value} beyond stack {stack.name}")
            raise self.refuse("a header stack index that is not constant")
        raise self.refuse("a computed header")

    def whole(self, *exprs: Expr | None) -> tuple[int, bool, list[Value]]:
        """Evaluate expressions. Return (width, signed, values); the common width can hold all values."""
        span = Interval(0, 0)
        for e in exprs:
            span = ranges.hull(span, self.interval(e))
        if span.bits > WIDEST:
            raise self.refuse(f"an intermediate result of more than {WIDEST} bits")
        return span.bits, span.signed, [self.value(e, span.bits) for e in exprs]

    def value(self, expr: Expr | None, width: int) -> Value:
        """Return the value of a numeric expression modulo 2^width, as an integer of `width` bits."""
        asm = self.asm
        if width > WIDEST:
            raise self.refuse(f"a value of {width} bits")
        expr = self._static(expr)
        match expr:
            case Const(number):
                return const(width, number)
            case BoolConst(truth):
                return const(width, int(truth))
            case Param(index):
                return asm.fit(self.params[index][1], width)
            case FieldRef():
                bits = self.m.read(expr, self.where)
                return asm.sext(bits, width) if self.m.program.field(expr).signed else asm.fit(bits, width)
            case Lookahead():
                raise self.refuse("lookahead outside the parser")
            case StackField():
                raise self.refuse(f"field {expr.field} of the last element of {expr.stack}")
            case Op():
                by = computed_index(expr.left) if expr.op == "access_field" else None
                return self._operation(expr, width) if by is None else self._element(expr, by, width)
        raise self.refuse(f"{type(expr).__name__.lower()} as a value")

    def _operation(self, e: Op, width: int) -> Value:
        asm, b = self.asm, self.asm.b
        match e.op:
            case "+":
                return b.add(self.value(e.left, width), self.value(e.right, width))
            case "-" if e.left is None:
                return b.neg(self.value(e.right, width))
            case "-":
                return b.sub(self.value(e.left, width), self.value(e.right, width))
            case "*":
                return self._multiply(self.value(e.left, width), self.value(e.right, width), width)
            case "&":
                return self._and(e, width)
            case "|":
                return b.or_(self.value(e.left, width), self.value(e.right, width))
            case "^":
                return b.xor(self.value(e.left, width), self.value(e.right, width))
            case "~":
                return b.not_(self.value(e.right, width))
            case "<<":
                return self._shift_left(e, width)
            case ">>":
                return self._shift_right(e, width)
            case "/" | "%":
                return self._divide(e, width)
            case "?":
                return b.select(self.truth(e.cond), self.value(e.left, width), self.value(e.right, width))
            case "b2d":
                return asm.fit(self.truth(e.right), width)
            case "two_comp_mod" if isinstance(e.right, Const):
                return asm.sext(self.value(e.left, e.right.value), width)
            case "usat_cast" | "sat_cast" if isinstance(e.right, Const):
                bounds = ranges.unsigned if e.op == "usat_cast" else ranges.signed
                return self._saturate(e.left, bounds(e.right.value), width)
        if e.op in _COMPARE or e.op in _LOGIC:
            return asm.fit(self.truth(e), width)
        raise self.refuse(f"operation '{e.op}'")

    def _and(self, e: Op, width: int) -> Value:
        # A constant mask limits the bits that are needed of the other operand. For instance, a 144-bit sum
        # with a 128-bit mask needs only 128 bits.
        needed = width
        for side in (e.left, e.right):
            if isinstance(side, Const) and side.value >= 0:
                needed = min(needed, max(side.value.bit_length(), 1))
        return self.asm.fit(self.asm.b.and_(self.value(e.left, needed), self.value(e.right, needed)), width)

    def _multiply(self, left: Value, right: Value, width: int) -> Value:
        asm, b = self.asm, self.asm.b
        if width <= 64:
            return b.mul(left, right)
        # LLVM's BPF back end cannot multiply more than 64 bits, so multiply pieces of 32 bits and add them.
        size = -(-width // 32) * 32
        left, right = asm.fit(left, size), asm.fit(right, size)

        def limb(v: Value, i: int) -> Value:
            return b.and_(asm.fit(b.lshr(v, const(size, 32 * i)) if i else v, 64), const(64, 0xFFFFFFFF))

        total = const(size, 0)
        for i in range(size // 32):
            for j in range(size // 32 - i):
                product = asm.fit(b.mul(limb(left, i), limb(right, j)), size)
                shift = 32 * (i + j)
                total = b.add(total, b.shl(product, const(size, shift)) if shift else product)
        return asm.fit(total, width)

    def _shift_left(self, e: Op, width: int) -> Value:
        if isinstance(e.right, Const):
            by = e.right.value
            if by >= width:
                return const(width, 0)
            return self.asm.b.shl(self.value(e.left, width), const(width, by))
        _, _, (amount,) = self.whole(e.right)
        return self._shift_by(self.value(e.left, width), amount, "left")

    def _shift_right(self, e: Op, width: int) -> Value:
        asm, b = self.asm, self.asm.b
        bits, signed, (left,) = self.whole(e.left)
        if isinstance(e.right, Const):
            by = e.right.value
            if by >= bits:
                by = bits - 1 if signed else bits
            if by == bits:
                return const(width, 0)
            shifted = (b.ashr if signed else b.lshr)(left, const(bits, by))
        else:
            _, _, (amount,) = self.whole(e.right)
            shifted = self._shift_by(left, amount, "arithmetic" if signed else "right")
        return asm.sext(shifted, width) if signed else asm.fit(shifted, width)

    def _shift_by(self, value: Value, amount: Value, how: str) -> Value:
        """Shift by a computed amount. If no bit remains, return 0, or -1 for a negative number."""
        asm, b, width = self.asm, self.asm.b, value.type.width
        size = -(-width // 64) * 64
        whole = (asm.sext if how == "arithmetic" else asm.fit)(value, size)
        amount = asm.fit(amount, max(amount.type.width, 16))
        over = b.icmp_unsigned(">=", amount, const(amount.type.width, width))
        by = asm.fit(b.select(over, const(amount.type.width, width - 1), amount), 64)
        if size == 64:
            shifted = {"left": b.shl, "right": b.lshr, "arithmetic": b.ashr}[how](whole, by)
        else:
            shifted = self._shift_limbs(whole, by, how)
        shifted = asm.fit(shifted, width)
        return shifted if how == "arithmetic" else b.select(over, const(width, 0), shifted)

    def _shift_limbs(self, value: Value, by: Value, how: str) -> Value:
        """Shift a number of more than 64 bits, in pieces (limbs) of 64 bits: BPF cannot shift more bits."""
        asm, b, size = self.asm, self.asm.b, value.type.width
        count = size // 64
        limbs = [asm.fit(b.lshr(value, const(size, 64 * i)) if i else value, 64) for i in range(count)]
        some, whole = b.and_(by, const(64, 63)), b.lshr(by, const(64, 6))
        rest = b.sub(const(64, 63), some)  # a shift by 64 is invalid: shift by 1, then by 63 - some
        fill = b.ashr(limbs[-1], const(64, 63)) if how == "arithmetic" else const(64, 0)

        def limb(i: int) -> Value:
            """Return piece `i` of the value, after a shift by `some` bits (at most 63)."""
            if how == "left":
                below = b.lshr(b.lshr(limbs[i - 1], const(64, 1)), rest) if i else const(64, 0)
                return b.or_(b.shl(limbs[i], some), below)
            if i == count - 1:
                return (b.ashr if how == "arithmetic" else b.lshr)(limbs[i], some)
            return b.or_(b.lshr(limbs[i], some), b.shl(b.shl(limbs[i + 1], const(64, 1)), rest))

        shifted = [limb(i) for i in range(count)]
        result = const(size, 0)
        for i in range(count):
            part = fill
            for j in range(i + 1) if how == "left" else range(i, count):
                here = b.icmp_unsigned("==", whole, const(64, abs(i - j)))
                part = b.select(here, shifted[j], part)
            wide = asm.fit(part, size)
            result = b.or_(result, b.shl(wide, const(size, 64 * i)) if i else wide)
        return result

    def _divide(self, e: Op, width: int) -> Value:
        asm, b = self.asm, self.asm.b
        bits, signed, (left, right) = self.whole(e.left, e.right)
        if signed:  # the quotient is rounded towards zero; the remainder has the sign of the dividend
            zero = const(bits, 0)
            below = [b.icmp_signed("<", v, zero) for v in (left, right)]
            left, right = (b.select(n, b.neg(v), v) for n, v in zip(below, (left, right), strict=True))
            size = self._unsigned(e.op, left, right)
            sign = b.xor(*below) if e.op == "/" else below[0]
            return asm.sext(b.select(sign, b.neg(size), size), width)
        if isinstance(e.right, Const) and e.right.value > 0 and e.right.value & (e.right.value - 1) == 0:
            by = e.right.value.bit_length() - 1
            if e.op == "/":
                return asm.fit(b.lshr(left, const(bits, by)), width)
            return asm.fit(b.and_(left, const(bits, (1 << by) - 1)), width)
        return asm.fit(self._unsigned(e.op, left, right), width)

    def _unsigned(self, op: str, left: Value, right: Value) -> Value:
        """Return an unsigned quotient (0 for the divisor 0) or remainder (the dividend for the divisor 0)."""
        asm, b, bits = self.asm, self.asm.b, left.type.width
        if bits > 64:
            raise self.refuse(f"operation '{op}' on more than 64 bits")
        left, right = asm.fit(left, 64), asm.fit(right, 64)
        return asm.fit((b.udiv if op == "/" else b.urem)(left, right), bits)

    def _saturate(self, expr: Expr | None, bounds: Interval, width: int) -> Value:
        asm, b = self.asm, self.asm.b
        span = ranges.hull(ranges.hull(self.interval(expr), bounds), Interval(-1, 0))
        if span.bits > WIDEST:
            raise self.refuse(f"an intermediate result of more than {WIDEST} bits")
        value = self.value(expr, span.bits)
        for edge, test in ((bounds.low, "<"), (bounds.high, ">")):
            limit = const(span.bits, edge)
            value = b.select(b.icmp_signed(test, value, limit), limit, value)
        return asm.sext(value, width)

    def is_truth(self, expr: Expr | None) -> bool:
        """Return True if an expression is boolean, False if it is a number."""
        if isinstance(expr, BoolConst):
            return True
        if not isinstance(expr, Op):
            return False
        return expr.op in _COMPARE or expr.op in _LOGIC or (expr.op == "?" and self.is_truth(expr.left))

    def truth(self, expr: Expr | None) -> Value:
        """Return the value of a boolean expression, as i1."""
        b = self.asm.b
        match expr:
            case BoolConst(value):
                return const(1, int(value))
            case Op(op="and"):
                return b.and_(self.truth(expr.left), self.truth(expr.right))
            case Op(op="or"):
                return b.or_(self.truth(expr.left), self.truth(expr.right))
            case Op(op="not"):
                return b.not_(self.truth(expr.right))
            case Op(op="?"):
                return b.select(self.truth(expr.cond), self.truth(expr.left), self.truth(expr.right))
            case Op(op="valid"):
                index = computed_index(expr.right)
                if index is None:
                    return self._valid(self.header(expr.right))
                result, headers = const(1, 0), self.elements(expr.right)
                for here, header in zip(self.choose(index, len(headers)), headers, strict=True):
                    result = b.or_(result, b.and_(here, self._valid(header)))
                return result
            case Op(op="valid_union", right=Name() as union):
                result = const(1, 0)
                for header in self.m.program.named(union):
                    result = b.or_(result, self._valid(header))
                return result
            case Op(op="d2b"):
                bits, _, (data,) = self.whole(expr.right)
                return b.icmp_unsigned("!=", data, const(bits, 0))
            case Op(op=op) if op in _COMPARE:
                if self.is_truth(expr.left):
                    return b.icmp_unsigned(op, self.truth(expr.left), self.truth(expr.right))
                if isinstance(expr.left, Name) and isinstance(expr.right, Name):
                    alike = self._alike(expr.left, expr.right)
                    return alike if op == "==" else b.not_(alike)
                if isinstance(expr.left, FieldRef) and isinstance(expr.right, FieldRef):
                    slots = [self._varbit(ref) for ref in (expr.left, expr.right)]
                    if slots[0] is not None and slots[1] is not None and op in ("==", "!="):
                        alike = self._alike_varbits(slots[0], slots[1])
                        return alike if op == "==" else b.not_(alike)
                _, signed, (left, right) = self.whole(expr.left, expr.right)
                return (b.icmp_signed if signed else b.icmp_unsigned)(op, left, right)
            case Op(op=op):
                raise self.refuse(f"operation '{op}'")
        raise self.refuse("a condition that is not boolean")

    def _valid(self, header: str) -> Value:
        return self.m.read(FieldRef(header, "$valid$"), self.where)

    def _alike(self, one: Name, other: Name) -> Value:
        """Return an i1: 1 if two headers are valid and equal. For unions, compare their valid headers."""
        b, program, result = self.asm.b, self.m.program, const(1, 0)
        for left, right in zip(program.named(one), program.named(other), strict=True):
            alike = b.and_(self._valid(left), self._valid(right))
            if left in self.m.layout.varbits:
                slots = [self.m.layout.varbits[h] for h in (left, right)]
                alike = b.and_(alike, self._alike_varbits(*slots))
            for f in program.headers[left].type.fields:
                values = [self.m.read(FieldRef(h, f.name), self.where) for h in (left, right)]
                alike = b.and_(alike, b.icmp_unsigned("==", *values))
            result = b.or_(result, alike)
        return result

    def _varbit(self, ref: FieldRef) -> VarbitSlot | None:
        return self.m.layout.varbits[ref.header] if self.m.program.varbit(ref) is not None else None

    def _alike_varbits(self, one: VarbitSlot, other: VarbitSlot) -> Value:
        """Return an i1: 1 if two fields of variable length have the same length and the same bits."""
        asm, memory, result = self.asm, self.m.scratch, const(1, 1)
        places = [(one.length, other.length, 32)]
        places += [(one.offset + at, other.offset + at, 64) for at in range(0, min(one.room, other.room), 8)]
        for left, right, width in places:
            values = [asm.load(asm.at(memory, place), width, width // 8) for place in (left, right)]
            result = asm.b.and_(result, asm.b.icmp_unsigned("==", *values))
        return result
