"""Expressions and hashes."""

from __future__ import annotations

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.hashes import HASHES
from mrclab.switches.p4_model.arithmetic import COMPARE, NUMERIC
from mrclab.switches.p4_model.machine import Machine
from mrclab.switches.v1model.declarations import Bits, Calculation
from mrclab.switches.v1model.expressions import (
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Name,
    Op,
    Param,
    StackField,
)


class Expressions(Machine):
    """Evaluates expressions on the frame at hand."""

    def _header(self, expr: Expr | None, args: tuple[int, ...]) -> str | None:
        """Return the header that an expression denotes, None beyond the end of a stack."""
        match expr:
            case Name("header", name):
                return name
            case Op(op="dereference_header_stack", left=Name(_, stack), right=index):
                at = self._value(index, args)
                return self.program.element(stack, at) if 0 <= at < self.program.depth(stack) else None
            case StackField(stack, "last"):
                return self.program.element(stack, self._s.extracted[stack] - 1)
        raise UnsupportedError("a computed header")

    def _reference(self, expr: Expr | None, args: tuple[int, ...]) -> FieldRef | None:
        match expr:
            case FieldRef():
                return expr
            case StackField(stack, name):
                return FieldRef(self.program.element(stack, self._s.extracted[stack] - 1), name)
            case Op(op="access_field", left=header, right=Const(index)):
                found = self._header(header, args)
                if found is None:
                    return None
                return FieldRef(found, self.program.headers[found].type.name_at(index))
        raise UnsupportedError("something other than a field")

    def _value(self, expr: Expr | None, args: tuple[int, ...]) -> int:
        match expr:
            case Const(value):
                return value
            case Param(index):
                return args[index]
            case BoolConst(value):
                return int(value)
            case FieldRef() | StackField() | Op(op="access_field"):
                ref = self._reference(expr, args)
                return 0 if ref is None else self._load(ref)
            case Op(op="b2d", right=right):
                return int(self._truth(right, args))
            case Op(op="?", cond=cond, left=left, right=right):
                return self._value(left if self._truth(cond, args) else right, args)
            case Op(op="last_stack_index", right=Name(_, stack)):
                return self._s.extracted.get(stack, 0) - 1
            case Op(op=op, left=None, right=right) if op in ("~", "-"):
                value = self._value(right, args)
                return ~value if op == "~" else -value
            case Op(op=op, left=left, right=right) if op in NUMERIC:
                return NUMERIC[op](self._value(left, args), self._value(right, args))
            case Op():
                return int(self._truth(expr, args))
        raise UnsupportedError(f"{type(expr).__name__.lower()} as a value")

    def _truth(self, expr: Expr | None, args: tuple[int, ...]) -> bool:
        match expr:
            case BoolConst(value):
                return value
            case Op(op="not", right=right):
                return not self._truth(right, args)
            case Op(op="and", left=left, right=right):
                return self._truth(left, args) and self._truth(right, args)
            case Op(op="or", left=left, right=right):
                return self._truth(left, args) or self._truth(right, args)
            case Op(op="d2b", right=right):
                return self._value(right, args) != 0
            case Op(op="valid", right=right):
                return self._s.valid.get(self._header(right, args) or "", False)
            case Op(op="valid_union", right=Name(_, union)):
                return any(self._s.valid.get(h, False) for h in self.program.elements(union))
            case Op(op=("==" | "!=") as op, left=Name(kind, one), right=Name(_, other)):
                return self._alike(kind, one, other) == (op == "==")
            case Op(op="?", cond=cond, left=left, right=right):
                return self._truth(left if self._truth(cond, args) else right, args)
            case Op(op=("==" | "!=") as op, left=FieldRef() as one, right=FieldRef() as other) if (
                self.program.varbit(one) is not None
            ):
                return (self._s.varbits.get(one, b"") == self._s.varbits.get(other, b"")) == (op == "==")
            case Op(op=op, left=left, right=right) if op in COMPARE:
                return COMPARE[op](self._value(left, args), self._value(right, args))
        raise UnsupportedError("a condition that is not boolean")

    def _alike(self, kind: str, one: str, other: str) -> bool:
        """Whether two headers, or two unions in the same header, are valid and equal."""
        if kind == "header_union":
            pairs = zip(self.program.elements(one), self.program.elements(other), strict=True)
            return any(self._alike("header", a, b) for a, b in pairs)
        return (
            self._s.valid.get(one, False)
            and self._s.valid.get(other, False)
            and self._emit(one) == self._emit(other)
        )

    def _hash(self, calculation: Calculation) -> int:
        if calculation.algorithm not in HASHES:
            raise UnsupportedError(f"hash algorithm {calculation.algorithm}", str(calculation.source))
        number = size = 0
        payload = b""
        for item in calculation.input:
            match item:
                case Name("payload", _):
                    payload = self._s.frame[self._s.offset :][: self._s.cut]
                    continue
                case FieldRef(header, _):
                    refs = [item]
                case Bits(value, width):
                    number, size = number << width | value, size + width
                    continue
                case Name("header", header):
                    if self.program.headers[header].type.varbit is not None:
                        raise UnsupportedError(f"a hash over variable-length header {header}")
                    refs = [FieldRef(header, f.name) for f in self.program.headers[header].type.fields]
                case Name(kind, _):
                    raise UnsupportedError(f"a hash over the {kind}", str(calculation.source))
            if self.program.headers[header].metadata or self._s.valid.get(header, False):
                for ref in refs:
                    if self.program.varbit(ref) is not None:
                        part = self._s.varbits.get(ref, b"")
                        number, size = number << len(part) * 8 | int.from_bytes(part), size + len(part) * 8
                        continue
                    width = self.program.field(ref).width
                    number, size = number << width | self._s.fields.get(ref, 0), size + width
        count = -(-size // 8)
        data = (number << count * 8 - size).to_bytes(count, "big")
        return HASHES[calculation.algorithm](data + payload)
