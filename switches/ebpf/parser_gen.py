"""The parser: every state is written once for each position in the frame at which it can be entered.

Positions are then constants, and a loop over a header stack unrolls by itself. Bytes are fetched by the
load helper, which copes with frames that are not in linear memory; a frame that ends too early leaves the
header invalid, sets parser_error, and still runs through ingress, as BMv2 does.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from switches.bmv2_json import (
    NOWHERE,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Op,
    ParserState,
    Primitive,
    StackField,
)
from switches.ebpf.actions import ActionWriter
from switches.ebpf.expr import Evaluator
from switches.ebpf.llvm import Helper, Value, const
from switches.ebpf.places import At
from switches.ebpf.unit import Unit
from switches.errors import UnsupportedError

STATE_LIMIT = 256  # written states; beyond it the program is refused rather than grown without end


class ParserWriter:
    """Writes the parser of a unit; `done` is the block behind it."""

    def __init__(self, unit: Unit, done: Any) -> None:
        self.u = unit
        self.asm = unit.asm
        self.done = done
        self.written: dict[tuple[str, At], Any] = {}
        self.pending: list[tuple[str, At]] = []
        self.statements = ActionWriter(unit, done)

    def run(self) -> None:
        """Write all states that can be reached. The builder ends in `done`."""
        parser = self.u.program.parser
        self.asm.goto(self._block(parser.start, At(0)))
        while self.pending:
            name, at = self.pending.pop()
            self.asm.enter(self.written[name, at])
            self._state(parser.states[name], at)
        self.asm.enter(self.done)

    def _block(self, name: str, at: At) -> Any:
        if (name, at) not in self.written:
            if len(self.written) >= STATE_LIMIT:
                source = self.u.program.parser.states[name].source
                raise UnsupportedError(f"a parser of more than {STATE_LIMIT} steps", str(source))
            self.written[name, at] = self.asm.block(f"parse.{name}.{at.offset}")
            self.pending.append((name, at))
        return self.written[name, at]

    def _stop(self, at: At, error: str | None = None) -> None:
        asm = self.asm
        asm.store(const(32, at.offset), asm.at(self.u.machine.scratch, self.u.layout.parsed), 4)
        if error is not None:
            self.u.set_standard("parser_error", const(32, self.u.program.errors.get(error, 0)))
        asm.b.branch(self.done)

    def _state(self, state: ParserState, at: At) -> None:
        for op in state.ops:
            match op.op:
                case "extract":
                    at = self._extract(op, at)
                case "set":
                    self._set(op, at)
                case "advance" if isinstance(op.args[0], Const) and op.args[0].value % 8 == 0:
                    at = self._advance(op.args[0].value // 8, at)
                case "shift" if isinstance(op.args[0], Const):
                    at = self._advance(op.args[0].value, at)
                case "verify":
                    self._verify(op, at)
                case "extract_VL" | "advance" | "shift":
                    raise UnsupportedError(f"parser operation '{op.op}' of variable length", str(op.source))
                case "register_read" | "register_write":
                    raise UnsupportedError("a register in the parser", str(op.source))
                case _:
                    self.statements.statement(op)
        self._select(state, at)

    def _need(self, end: int, at: At) -> None:
        """Stop with PacketTooShort unless the frame has `end` bytes."""
        asm = self.asm
        enough, short = asm.block("enough"), asm.block("short")
        asm.b.cbranch(asm.b.icmp_unsigned(">=", self.u.length, const(32, end)), enough, short)
        asm.enter(short)
        self._stop(at, "PacketTooShort")
        asm.enter(enough)

    def _advance(self, count: int, at: At) -> At:
        self._need(at.offset + count, at)
        return replace(at, offset=at.offset + count)

    def _extract(self, op: Primitive, at: At) -> At:
        target = op.args[0]
        if not isinstance(target, Name) or target.kind not in ("header", "header_stack"):
            raise UnsupportedError("extracting a header union", str(op.source))
        after, header = at, target.name
        if target.kind == "header_stack":
            members, index = self.u.program.stacks[target.name].members, at.next_index(target.name)
            if index >= len(members):
                self._stop(at, "StackOutOfBounds")
                self.asm.enter(self.asm.block("unreachable"))
                return at
            header, after = members[index], at.extracted(target.name)
        kind = self.u.program.headers[header].type
        if kind.varbit is not None:
            raise UnsupportedError(f"variable-length field {kind.varbit} of {header}", str(op.source))
        size = kind.bits // 8
        raw = self.u.layout.raw[header]
        if size:
            self._fetch(raw, at.offset, size, at)
        self._unpack(header, raw)
        self.u.machine.set_valid(header, True)
        if self.u.layout.written(header):
            self.asm.store(
                const(16, at.offset), self.asm.at(self.u.machine.scratch, self.u.layout.place[header]), 2
            )
        return replace(after, offset=at.offset + size)

    def _fetch(self, scratch_offset: int, offset: int, size: int, at: At) -> None:
        """Copy bytes of the frame into scratch memory, or stop with PacketTooShort."""
        asm = self.asm
        there, short = asm.block("there"), asm.block("short")
        to = asm.at(self.u.machine.scratch, scratch_offset)
        failed = asm.helper(Helper.SKB_LOAD_BYTES, self.u.ctx, const(64, offset), to, const(64, size))
        asm.b.cbranch(asm.b.icmp_unsigned("==", failed, const(64, 0)), there, short)
        asm.enter(short)
        self._stop(at, "PacketTooShort")
        asm.enter(there)

    def _unpack(self, header: str, raw: int) -> None:
        for name, field in self.u.program.headers[header].field_by_name.items():
            ref = FieldRef(header, name)
            if ref in self.u.layout.slots:
                bits = self._bits(raw * 8 + field.offset, field.width)
                self.u.machine.fill(ref, bits, NOWHERE)

    def _bits(self, offset: int, width: int) -> Value:
        """Bits of scratch memory, most significant first, as an integer of that width."""
        asm = self.asm
        first, last = offset // 8, (offset + width - 1) // 8
        size = last - first + 1
        value = asm.load_be(self.u.machine.scratch, first, size)
        behind = (last + 1) * 8 - (offset + width)
        if behind:
            value = asm.b.lshr(value, const(size * 8, behind))
        return asm.fit(value, width)

    def _lookahead(self, expr: Lookahead, at: At, source: str) -> Value:
        if expr.width > 128:
            raise UnsupportedError(f"lookahead of {expr.width} bits", source)
        first = at.offset + expr.offset // 8
        size = (expr.offset % 8 + expr.width + 7) // 8
        buffer = self.u.layout.buffer
        self._fetch(buffer, first, size, at)
        return self._bits(buffer * 8 + expr.offset % 8, expr.width)

    def _resolve(self, expr: Expr, at: At, source: str) -> Expr:
        """Replace fields of the last extracted element of a stack by that element's."""
        if isinstance(expr, StackField):
            index = at.next_index(expr.stack) - 1
            if index < 0:
                raise UnsupportedError(f"field {expr.field} of the empty stack {expr.stack}", source)
            return FieldRef(self.u.program.stacks[expr.stack].members[index], expr.field)
        if isinstance(expr, Op):
            if expr.op == "last_stack_index" and isinstance(expr.right, Name):
                return Const(at.next_index(expr.right.name) - 1)
            left, right, cond = (
                None if part is None else self._resolve(part, at, source)
                for part in (expr.left, expr.right, expr.cond)
            )
            return Op(expr.op, left, right, cond)
        return expr

    def _set(self, op: Primitive, at: At) -> None:
        target, origin = op.args
        if isinstance(origin, Lookahead) and isinstance(target, FieldRef):
            bits = self._lookahead(origin, at, str(op.source))
            width = self.u.program.field(target).width
            self.u.machine.write(target, self.asm.fit(bits, width), op.source)
            return
        resolved = tuple(self._resolve(a, at, str(op.source)) for a in op.args)
        self.statements.statement(replace(op, args=resolved))

    def _verify(self, op: Primitive, at: At) -> None:
        asm = self.asm
        e = Evaluator(self.u.machine, op.source)
        fine, wrong = asm.block("verified"), asm.block("unverified")
        asm.b.cbranch(e.truth(self._resolve(op.args[0], at, str(op.source))), fine, wrong)
        asm.enter(wrong)
        self.u.set_standard("parser_error", e.value(op.args[1], 32))
        self._stop(at)
        asm.enter(fine)

    def _select(self, state: ParserState, at: At) -> None:
        asm, source = self.asm, str(state.source)
        e = Evaluator(self.u.machine, state.source)
        keys: list[tuple[Value, int]] = []  # value and its width with padding
        for k in state.key:
            if isinstance(k, Lookahead):
                bits = self._lookahead(k, at, source)
            else:
                resolved = self._resolve(k, at, source)
                if not isinstance(resolved, FieldRef):
                    raise UnsupportedError("a select on something other than fields and lookahead", source)
                bits = e.value(resolved, self.u.program.field(resolved).width)
            keys.append((bits, (bits.type.width + 7) // 8 * 8))
        for t in state.transitions:
            if t.kind == "parse_vset":
                raise UnsupportedError("parser value set", source)
            if t.kind == "default":
                self._follow(t.next, at)
                return
            taken, next_test = asm.block("select.taken"), asm.block("select.next")
            asm.b.cbranch(self._matches(keys, t.value, t.mask), taken, next_test)
            asm.enter(taken)
            self._follow(t.next, at)
            asm.enter(next_test)
        self._stop(at)  # p4c adds a state that raises NoMatch where the program has no default

    def _follow(self, state: str | None, at: At) -> None:
        if state is None:
            self._stop(at)
        else:
            self.asm.b.branch(self._block(state, at))

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
