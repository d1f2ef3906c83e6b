"""The parser."""

from __future__ import annotations

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.p4_model.frame import (
    ParserError,
)
from mrclab.switches.p4_model.statements import Statements
from mrclab.switches.v1model.expressions import (
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Primitive,
    StackField,
    UnionStackField,
    UnionStackHeader,
)


class ParserModel(Statements):
    """Parses the frame at hand."""

    def _parse(self) -> None:
        state: str | None = self.program.parser.start
        try:
            while state is not None:
                current = self.program.parser.states[state]
                for op in current.ops:
                    self._parser_op(op)
                state = None
                key = [(self._key_value(k), self._width(k)) for k in current.key]
                number = size = 0
                for value, width in key:
                    padded = -(-width // 8) * 8
                    number, size = number << padded | value, size + padded
                for t in current.transitions:
                    mask = (1 << size) - 1 if t.mask is None else t.mask
                    if t.value_set is not None:
                        taken = any(
                            all(m.matches(v, w) for m, (v, w) in zip(member, key, strict=True))
                            for member in self.value_sets.get(t.value_set, ())
                        )
                    else:
                        taken = t.kind == "default" or number & mask == t.value & mask
                    if taken:
                        state = t.next
                        break
        except ParserError as error:
            self._set_standard("parser_error", error.code)

    def _width(self, key: Expr) -> int:
        match key:
            case Lookahead(_, width):
                return width
            case FieldRef():
                return self.program.field(key).width
            case StackField(stack, name):
                return self.program.field(FieldRef(self.program.element(stack, 0), name)).width
            case UnionStackField(stack, header, name):
                return self.program.field(FieldRef(self.program.element(stack, 0, header), name)).width
        raise UnsupportedError("a select on something other than fields and lookahead")

    def _key_value(self, key: Expr) -> int:
        match key:
            case Lookahead():
                return self._bits(key)
            case UnionStackField(stack, header, name):
                last = self.program.element(stack, self._s.extracted[stack] - 1, header)
                return self._load(FieldRef(last, name))
        return self._value(key, ())

    def _fail(self, name: str) -> ParserError:
        return ParserError(self.program.errors.get(name, 0))

    def _bits(self, look: Lookahead) -> int:
        first = self._s.offset * 8 + look.offset
        last = first + look.width
        if last > len(self._s.frame) * 8:
            raise self._fail("PacketTooShort")
        whole = int.from_bytes(self._s.frame, "big")
        return whole >> (len(self._s.frame) * 8 - last) & ((1 << look.width) - 1)

    def _parser_op(self, op: Primitive) -> None:
        s = self._s
        match op.op:
            case "extract" | "extract_VL":
                match op.args[0]:
                    case Name("header_stack", stack):
                        member = None
                    case UnionStackHeader(stack, member):
                        pass
                    case Name(_, header):
                        self._extract(header, op)
                        return
                index = s.extracted.get(stack, 0)
                if index >= self.program.depth(stack):
                    raise self._fail("StackOutOfBounds")
                self._extract(self.program.element(stack, index, member), op)
                s.extracted[stack] = index + 1
            case "set":
                ref, origin = op.args
                assert isinstance(ref, FieldRef)
                value = self._bits(origin) if isinstance(origin, Lookahead) else self._value(origin, ())
                self._store(ref, value)
            case "verify":
                if not self._truth(op.args[0], ()):
                    raise ParserError(self._value(op.args[1], ()))
            case "advance" | "shift":
                count = self._value(op.args[0], ())
                if op.op == "advance":
                    if count % 8:
                        raise self._fail("ParserInvalidArgument")
                    count //= 8
                if s.offset + count > len(s.frame):
                    raise self._fail("PacketTooShort")
                s.offset += count
            case _:
                self._statement(op, ())

    def _extract(self, header: str, op: Primitive) -> None:
        s, kind = self._s, self.program.headers[header].type
        length = 0  # of the field of variable length, in bytes
        if kind.varbit is not None:
            bits = self._value(op.args[1], ())
            if bits % 8:
                raise self._fail("ParserInvalidArgument")
            length = bits // 8
        size = kind.bits // 8 + length
        if s.offset + size > len(s.frame):
            raise self._fail("PacketTooShort")
        data = s.frame[s.offset : s.offset + size]
        if kind.varbit is not None:
            if length > kind.varbit.size:
                raise self._fail("HeaderTooShort")
            at = kind.varbit.offset // 8
            s.varbits[FieldRef(header, kind.varbit.name)] = data[at : at + length]
            data = data[:at] + data[at + length :]
        whole = int.from_bytes(data, "big")
        for f in kind.fields:
            self._store(FieldRef(header, f.name), whole >> (kind.bits - f.offset - f.width))
        self._set_valid(header)
        s.offset += size
