"""Write the code of the parser, and of the look-up of a select's key in a parser value set.

The code of a state is written once for each position in the frame at which the parser can enter the state. So
positions are constants, and a loop over a header stack is unrolled. If a parser has too many positions, the
program computes positions at run time. Then the code of a state is written once for each number of extracted
stack elements.

If a frame ends too early, the header stays invalid and parser_error is set. As in BMv2, the frame still goes
through ingress.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mrclab.linux.bpf_types import NO_PREALLOC, MapSpec, MapType
from mrclab.linux.errors import UnsupportedError
from mrclab.switches.ebpf.codegen.actions import ActionWriter
from mrclab.switches.ebpf.codegen.analysis.header_offsets import ParserPosition, endless, follow_parser
from mrclab.switches.ebpf.codegen.backend.asm import I64, Helper, MapPool, Value, const
from mrclab.switches.ebpf.codegen.codegen_context import CodegenContext
from mrclab.switches.ebpf.codegen.expressions import Evaluator
from mrclab.switches.ebpf.plan import (
    PLACES_PER_FIELD,
    SCAN_LIMIT,
    USED_BYTES,
    WIDEST,
    KeySlot,
    ValueSetLayout,
    round8,
)
from mrclab.switches.v1model.declarations import ValueSet, Varbit
from mrclab.switches.v1model.expressions import (
    NOWHERE,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Op,
    Primitive,
    StackField,
    UnionStackField,
)
from mrclab.switches.v1model.program import ParserState, Program, Transition


def key_width(program: Program, key: Expr) -> int:
    """Return the width of one expression in a select's key, in bits."""
    match key:
        case Lookahead(_, width):
            return width
        case FieldRef():
            return program.field(key).width
        case StackField(stack, name):
            return program.field(FieldRef(program.element(stack, 0), name)).width
        case UnionStackField(stack, header, name):
            return program.field(FieldRef(program.element(stack, 0, header), name)).width
    raise UnsupportedError("a select on something other than fields and lookahead")


def _widths(program: Program, value_set: ValueSet) -> list[int]:
    for state in program.parser.states.values():
        if any(t.value_set == value_set.name for t in state.transitions):
            return [key_width(program, k) for k in state.key]
    return [value_set.bits]


def layout_value_set(program: Program, value_set: ValueSet, pool: MapPool) -> ValueSetLayout:
    """Lay out the map of a value set. Raise UnsupportedError if the set is too large."""
    size = max(value_set.size, 1)
    if size > SCAN_LIMIT:
        what = f"parser value set {value_set.name} of more than {SCAN_LIMIT} members"
        raise UnsupportedError(what, str(value_set.source))
    slots, offset = [], 0
    for i, width in enumerate(_widths(program, value_set)):
        slots.append(KeySlot(str(i), "exact", width, offset, round8((width + 7) // 8)))
        offset += slots[-1].size
    spec = MapSpec(
        value_set.name, MapType.HASH, 4, (USED_BYTES + PLACES_PER_FIELD * offset) * size, 1, NO_PREALLOC
    )
    return ValueSetLayout(value_set.name, pool.add(spec), tuple(slots), offset, size)


def find_member(
    gen: CodegenContext, layout: ValueSetLayout, keys: Sequence[Value], found: object, absent: object
) -> None:
    """Write the look-up of a key in a value set. The code jumps to block `found` or `absent`."""
    asm, b = gen.asm, gen.asm.b
    cells = asm.helper(Helper.MAP_LOOKUP_ELEM, asm.map_ptr(layout.map), gen.zero_key)
    start, loop, test, following = (asm.block(f"members.{n}") for n in ("start", "loop", "test", "following"))
    b.cbranch(asm.is_null(cells), absent, start)
    asm.enter(start)
    b.branch(loop)
    asm.enter(loop)
    index = b.phi(I64)
    index.add_incoming(const(64, 0), start)
    cell = asm.at(cells, b.mul(index, const(64, USED_BYTES + PLACES_PER_FIELD * layout.key_size)))
    b.cbranch(b.icmp_unsigned("==", asm.load(cell, 64, 8), const(64, 0)), absent, test)
    asm.enter(test)
    fits = const(1, 1)
    for bits, slot in zip(keys, layout.key, strict=True):
        width = slot.size * 8
        mask, low, high = (
            asm.load(asm.at(cell, USED_BYTES + place * layout.key_size + slot.offset), width, 8)
            for place in range(PLACES_PER_FIELD)
        )
        key = b.and_(asm.fit(bits, width), mask)
        inside = b.and_(b.icmp_unsigned(">=", key, low), b.icmp_unsigned("<=", key, high))
        fits = b.and_(fits, inside)
    b.cbranch(fits, found, following)
    asm.enter(following)
    succ = b.add(index, const(64, 1))
    index.add_incoming(succ, following)
    b.cbranch(b.icmp_unsigned("<", succ, const(64, layout.size)), loop, absent)


STATE_LIMIT = 256  # maximum number of written states, where a state counts once for each position


class ParserWriter:
    """Write the code of the parser. `done` is the block after the parser."""

    def __init__(self, gen: CodegenContext, done: Any) -> None:
        self.gen = gen
        self.asm = gen.asm
        self.done = done
        self.written: dict[tuple[str, ParserPosition], Any] = {}
        self.pending: list[tuple[str, ParserPosition]] = []
        self.folded = False  # True: positions are computed at run time, because there are too many
        self.statements = ActionWriter(gen, done)

    def run(self) -> None:
        """Write all states that can be reached. Code that is written later goes to block `done`."""
        program, parser = self.gen.program, self.gen.program.parser
        steps = follow_parser(program, STATE_LIMIT, folded=False)
        if steps is None:
            self.folded = True
            steps = follow_parser(program, STATE_LIMIT, folded=True)
        source = str(parser.states[parser.start].source)
        if steps is None:
            raise UnsupportedError(f"a parser of more than {STATE_LIMIT} steps", source)
        if (state := endless(steps)) is not None:
            where = str(parser.states[state].source) or source
            raise UnsupportedError(f"a loop of the parser at state {state} that no header stack ends", where)
        self.asm.goto(self._block(parser.start, ParserPosition(0)))
        while self.pending:
            name, at = self.pending.pop()
            self.asm.enter(self.written[name, at])
            with self.asm.place(f"parser state {name}", parser.states[name].source):
                self._state(parser.states[name], at)
        self.asm.enter(self.done)

    def _block(self, name: str, at: ParserPosition) -> Any:
        if (name, at) not in self.written:
            self.written[name, at] = self.asm.block(f"parse.{name}.{at.offset}")
            self.pending.append((name, at))
        return self.written[name, at]

    def _position(self, at: ParserPosition, further: int = 0) -> Value:
        """Return the offset in the frame of a parser position plus `further` bytes."""
        here = const(32, at.offset + further)
        if not at.unknown_lengths:
            return here
        base = self.asm.load(self.asm.at(self.gen.machine.scratch, self.gen.layout.base), 32, 4)
        return self.asm.b.add(here, base)

    def _passed(self, at: ParserPosition, count: Value) -> ParserPosition:
        """Move the position by a number of bytes that is known only at run time."""
        cell = self.asm.at(self.gen.machine.scratch, self.gen.layout.base)
        before = self.asm.load(cell, 32, 4)
        self.asm.store(self.asm.b.add(before, count), cell, 4)
        return replace(at, unknown_lengths=at.unknown_lengths + 1)

    def _stop(self, at: ParserPosition, error: str | None = None) -> None:
        asm = self.asm
        asm.store(self._position(at), asm.at(self.gen.machine.scratch, self.gen.layout.parsed), 4)
        if error is not None:
            self.gen.set_standard("parser_error", const(32, self.gen.program.errors.get(error, 0)))
        asm.b.branch(self.done)

    def _state(self, state: ParserState, at: ParserPosition) -> None:
        for op in state.ops:
            match op.op:
                case "extract" | "extract_VL":
                    at = self._extract(op, at)
                case "set":
                    self._set(op, at)
                case "advance" if isinstance(op.args[0], Const) and op.args[0].value % 8 == 0:
                    at = self._advance(op.args[0].value // 8, at)
                case "shift" if isinstance(op.args[0], Const):
                    at = self._advance(op.args[0].value, at)
                case "verify":
                    self._verify(op, at)
                case "advance":
                    at = self._advance_by(op, at)
                case "register_read" | "register_write":
                    raise UnsupportedError("a register in the parser", str(op.source))
                case _:
                    resolved = tuple(self._resolve(a, at, str(op.source)) for a in op.args)
                    self.statements.statement(replace(op, args=resolved))
                    at = at.moved(self.gen.program, op)
        self._select(state, at)

    def _demand(self, condition: Value, at: ParserPosition, error: str) -> None:
        """Write a check: if the condition is false, stop the parser with this error."""
        asm = self.asm
        fine, wrong = asm.block("fine"), asm.block("wrong")
        asm.b.cbranch(condition, fine, wrong)
        asm.enter(wrong)
        self._stop(at, error)
        asm.enter(fine)

    def _need(self, end: Value, at: ParserPosition) -> None:
        """Write a check: if the frame has fewer than `end` bytes, stop with PacketTooShort."""
        self._demand(self.asm.b.icmp_unsigned(">=", self.gen.frame_length, end), at, "PacketTooShort")

    def _advance(self, count: int, at: ParserPosition) -> ParserPosition:
        self._need(self._position(at, count), at)
        return replace(at, offset=at.offset + count)

    def _advance_by(self, op: Primitive, at: ParserPosition) -> ParserPosition:
        count = self._whole_bytes(op.args[0], op, at)
        self._need(self.asm.b.add(self._position(at), count), at)
        return self._passed(at, count)

    def _whole_bytes(self, bits: Expr, op: Primitive, at: ParserPosition) -> Value:
        """Convert a computed number of bits to bytes (i32). If a part of a byte remains, stop the parser."""
        b = self.asm.b
        number = Evaluator(self.gen.machine, op.source).value(self._resolve(bits, at, str(op.source)), 32)
        rest = b.and_(number, const(32, 7))
        self._demand(b.icmp_unsigned("==", rest, const(32, 0)), at, "ParserInvalidArgument")
        return b.lshr(number, const(32, 3))

    def _extract(self, op: Primitive, at: ParserPosition) -> ParserPosition:
        found = at.extract(self.gen.program, op.args[0])
        if found is None:
            self._stop(at, "StackOutOfBounds")
            self.asm.enter(self.asm.block("unreachable"))
            return at
        header, after = found
        where = self._position(at)
        kind = self.gen.program.headers[header].type
        size = kind.bits // 8
        raw = self.gen.layout.raw[header]
        if kind.varbit is not None:
            after = self._fetch_varbit(op, header, kind.varbit, at, after)
        elif size:
            self._fetch(raw, self._position(at), size, at)
        self._unpack(header, raw)
        self.gen.machine.set_valid(header, True)
        if self.gen.layout.written(header):
            place = self.asm.at(self.gen.machine.scratch, self.gen.layout.place[header])
            self.asm.store(self.asm.fit(where, 16), place, 2)
        return replace(after, offset=at.offset + size)

    def _fetch_varbit(
        self, op: Primitive, header: str, varbit: Varbit, at: ParserPosition, after: ParserPosition
    ) -> ParserPosition:
        """Copy a header and its variable-length field to two separate places in scratch memory.

        Return the position after that field.
        """
        if op.op != "extract_VL":
            raise UnsupportedError(f"extracting {header} without a length", str(op.source))
        if varbit.offset % 8:
            what = f"variable-length field {varbit.name} of {header}, which does not begin with a byte"
            raise UnsupportedError(what, str(op.source))
        asm, b, layout, memory = self.asm, self.asm.b, self.gen.layout, self.gen.machine.scratch
        slot, size = layout.varbits[header], self.gen.program.headers[header].type.bits // 8
        count = self._whole_bytes(op.args[1], op, at)
        self._need(b.add(self._position(at, size), count), at)
        most = b.icmp_unsigned("<=", count, const(32, varbit.size))
        self._demand(most, at, "HeaderTooShort")
        asm.store(count, asm.at(memory, slot.length), 4)
        asm.zero(memory, slot.offset, slot.room)
        before, raw = varbit.offset // 8, layout.raw[header]
        if before:
            self._fetch(raw, self._position(at), before, at)
        else:  # `varbit_bytes` requires an earlier call of any helper function
            asm.helper(Helper.KTIME_GET_NS)
        some, done = asm.block("varbit.some"), asm.block("varbit.done")
        b.cbranch(b.icmp_unsigned("==", count, const(32, 0)), done, some)
        asm.enter(some)
        self._fetch(slot.offset, self._position(at, before), self.gen.varbit_bytes(header), at)
        b.branch(done)
        asm.enter(done)
        behind = self._passed(at, asm.load(asm.at(memory, slot.length), 32, 4))
        if size > before:
            self._fetch(raw + before, self._position(behind, before), size - before, at)
        return replace(after, unknown_lengths=behind.unknown_lengths)

    def _fetch(self, scratch_offset: int, offset: Value, size: int | Value, at: ParserPosition) -> None:
        """Copy bytes of the frame into scratch memory, or stop with PacketTooShort."""
        asm = self.asm
        there, short = asm.block("there"), asm.block("short")
        to = asm.at(self.gen.machine.scratch, scratch_offset)
        count = const(64, size) if isinstance(size, int) else size
        failed = asm.helper(Helper.SKB_LOAD_BYTES, self.gen.ctx, asm.fit(offset, 64), to, count)
        asm.b.cbranch(asm.b.icmp_unsigned("==", failed, const(64, 0)), there, short)
        asm.enter(short)
        self._stop(at, "PacketTooShort")
        asm.enter(there)

    def _unpack(self, header: str, raw: int) -> None:
        for name, field in self.gen.program.headers[header].field_by_name.items():
            ref = FieldRef(header, name)
            if ref in self.gen.layout.slots:
                bits = self._bits(raw * 8 + field.offset, field.width)
                self.gen.machine.fill(ref, bits, NOWHERE)

    def _bits(self, offset: int, width: int) -> Value:
        """Return bits of scratch memory as an integer, most significant bit first. `offset` is in bits."""
        asm = self.asm
        first, last = offset // 8, (offset + width - 1) // 8
        size = last - first + 1
        value = asm.load_be(self.gen.machine.scratch, first, size)
        behind = (last + 1) * 8 - (offset + width)
        if behind:
            value = asm.b.lshr(value, const(size * 8, behind))
        return asm.fit(value, width)

    def _lookahead(self, expr: Lookahead, at: ParserPosition, source: str) -> Value:
        if expr.width > WIDEST:
            raise UnsupportedError(f"lookahead of {expr.width} bits", source)
        first = self._position(at, expr.offset // 8)
        size = (expr.offset % 8 + expr.width + 7) // 8
        buffer = self.gen.layout.buffer
        self._fetch(buffer, first, size, at)
        return self._bits(buffer * 8 + expr.offset % 8, expr.width)

    def _resolve(self, expr: Expr, at: ParserPosition, source: str) -> Expr:
        """In an expression, replace references to a stack's last extracted element by that header."""
        if isinstance(expr, StackField):
            index = at.next_index(expr.stack) - 1
            if index < 0:
                raise UnsupportedError(f"field {expr.field} of the empty stack {expr.stack}", source)
            header = self.gen.program.element(expr.stack, index)
            if expr.field not in self.gen.program.headers[header].field_by_name and expr.field == "last":
                return Name("header", header)  # p4c writes field "last" for the whole element
            return FieldRef(header, expr.field)
        if isinstance(expr, UnionStackField):
            index = at.next_index(expr.stack) - 1
            if index < 0:
                raise UnsupportedError(f"field {expr.field} of the empty stack {expr.stack}", source)
            return FieldRef(self.gen.program.element(expr.stack, index, expr.header), expr.field)
        if isinstance(expr, Op):
            if expr.op == "last_stack_index" and isinstance(expr.right, Name):
                return Const(at.next_index(expr.right.name) - 1)
            left, right, cond = (
                None if part is None else self._resolve(part, at, source)
                for part in (expr.left, expr.right, expr.cond)
            )
            return Op(expr.op, left, right, cond)
        return expr

    def _set(self, op: Primitive, at: ParserPosition) -> None:
        target, origin = op.args
        if isinstance(origin, Lookahead) and isinstance(target, FieldRef):
            bits = self._lookahead(origin, at, str(op.source))
            width = self.gen.program.field(target).width
            self.gen.machine.write(target, self.asm.fit(bits, width), op.source)
            return
        resolved = tuple(self._resolve(a, at, str(op.source)) for a in op.args)
        self.statements.statement(replace(op, args=resolved))

    def _verify(self, op: Primitive, at: ParserPosition) -> None:
        asm = self.asm
        e = Evaluator(self.gen.machine, op.source)
        fine, wrong = asm.block("verified"), asm.block("unverified")
        asm.b.cbranch(e.truth(self._resolve(op.args[0], at, str(op.source))), fine, wrong)
        asm.enter(wrong)
        self.gen.set_standard("parser_error", e.value(op.args[1], 32))
        self._stop(at)
        asm.enter(fine)

    def _select(self, state: ParserState, at: ParserPosition) -> None:
        asm, source = self.asm, str(state.source)
        if self.folded and at.offset:
            at = self._passed(replace(at, offset=0), const(32, at.offset))
        e = Evaluator(self.gen.machine, state.source)
        keys: list[tuple[Value, int]] = []  # (value, width in bits, rounded up to whole bytes)
        for k in state.key:
            if isinstance(k, Lookahead):
                bits = self._lookahead(k, at, source)
            else:
                resolved = self._resolve(k, at, source)
                if not isinstance(resolved, FieldRef):
                    raise UnsupportedError("a select on something other than fields and lookahead", source)
                bits = e.value(resolved, self.gen.program.field(resolved).width)
            keys.append((bits, (bits.type.width + 7) // 8 * 8))
        for t in state.transitions:
            if t.kind == "default":
                self._follow(t.next, at)
                return
            taken, next_test = asm.block("select.taken"), asm.block("select.next")
            if t.value_set is not None:
                layout = self.gen.value_sets[t.value_set]
                find_member(self.gen, layout, self._members(keys, t, state), taken, next_test)
            else:
                asm.b.cbranch(self._matches(keys, t.value, t.mask), taken, next_test)
            asm.enter(taken)
            self._follow(t.next, at)
            asm.enter(next_test)
        self._stop(at)  # not reached: without a default, p4c adds a state that raises NoMatch

    def _members(self, keys: list[tuple[Value, int]], t: Transition, state: ParserState) -> list[Value]:
        assert t.value_set is not None
        widths = [slot.width for slot in self.gen.value_sets[t.value_set].key]
        if widths != [bits.type.width for bits, _ in keys] or t.mask is not None:
            raise UnsupportedError(f"value set {t.value_set} in selects of other widths", str(state.source))
        return [bits for bits, _ in keys]

    def _follow(self, state: str | None, at: ParserPosition) -> None:
        if state is None:
            self._stop(at)
        else:
            self.asm.b.branch(self._block(state, at.folded() if self.folded else at))

    def _matches(self, keys: list[tuple[Value, int]], value: int, mask: int | None) -> Value:
        b = self.asm.b
        result = const(1, 1)
        rest = sum(width for _, width in keys)
        for bits, padded in keys:
            rest -= padded
            width = bits.type.width
            want = value >> rest & ((1 << padded) - 1)
            if mask is not None:
                part = mask >> rest & ((1 << padded) - 1)
                want &= part
                bits = b.and_(bits, const(width, part))
            if want >> width:
                return const(1, 0)
            result = b.and_(result, b.icmp_unsigned("==", bits, const(width, want)))
        return result
