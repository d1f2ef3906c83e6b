"""Evaluate expressions, hashes, statements and actions, with integers of any size."""

from __future__ import annotations

from collections.abc import Callable

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.hashes import HASHES
from mrclab.switches.p4_model.machine import DROP, AssertionFailedError, Counts, Machine, Meter
from mrclab.switches.v1model.declarations import Action, Bits, Calculation, MeterArray
from mrclab.switches.v1model.expressions import (
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Name,
    Op,
    Param,
    Primitive,
    StackField,
)


def _divide(a: int, b: int) -> int:
    """Divide and round towards zero. A division by zero gives zero."""
    if not b:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _modulo(value: int, width: int) -> int:
    low = value % (1 << width)
    return low - (1 << width) if low >> (width - 1) else low


NUMERIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": _divide,
    "%": lambda a, b: a - b * _divide(a, b),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "two_comp_mod": _modulo,
    "usat_cast": lambda a, w: min(max(a, 0), (1 << w) - 1),
    "sat_cast": lambda a, w: min(max(a, -(1 << (w - 1))), (1 << (w - 1)) - 1),
}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class Expressions(Machine):
    """Evaluate expressions on the current frame."""

    def _header(self, expr: Expr | None, args: tuple[int, ...]) -> str | None:
        """Return the header that an expression denotes; None if an index is beyond the end of a stack."""
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
        """Return True if two headers are valid and equal. For two unions, compare their headers in pairs."""
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


class Statements(Expressions):
    """Execute actions on the current frame."""

    def _action(self, action: Action, args: tuple[int, ...]) -> None:
        at = 0
        while at < len(action.primitives):
            p = action.primitives[at]
            at += 1
            if p.op == "_jump":
                at = self._value(p.args[0], args)
            elif p.op == "_jump_if_zero":
                if not self._value(p.args[0], args):
                    at = self._value(p.args[1], args)
            else:
                self._statement(p, args)

    def _statement(self, p: Primitive, args: tuple[int, ...]) -> None:
        match p.op, p.args:
            case (("assign" | "set"), (target, value)):
                if (ref := self._reference(target, args)) is not None:
                    self._store(ref, self._value(value, args))
            case "assign_VL", (FieldRef() as to, FieldRef() as origin):
                self._s.varbits[to] = self._s.varbits.get(origin, b"")
            case "assign_header", (to, origin):
                names = self._header(to, args), self._header(origin, args)
                if names[0] is not None and names[1] is not None:
                    self._assign_header(names[0], names[1])
            case (
                ("assign_union" | "assign_header_stack" | "assign_union_stack"),
                (Name(_, to), Name(_, origin)),
            ):
                pairs = zip(self.program.elements(to), self.program.elements(origin), strict=True)
                for one, other in pairs:
                    self._assign_header(one, other)
                if p.op != "assign_union":
                    self._s.extracted[to] = self._s.extracted.get(origin, 0)
            case "add_header", (header,):
                if (name := self._header(header, args)) is not None:
                    if not self._s.valid.get(name):
                        self._zero(name)
                        self._s.length += self._size(name)
                    self._set_valid(name)
            case "remove_header", (header,):
                if (name := self._header(header, args)) is not None:
                    if self._s.valid.get(name):
                        self._s.length -= self._size(name)
                    self._s.valid[name] = False
            case (("push" | "pop"), (Name(_, stack), Const(count))):
                depth, before = self.program.depth(stack), self._s.extracted.get(stack, 0)
                self._shift(stack, count if p.op == "push" else -count)
                after = min(before + count, depth) if p.op == "push" else max(before - count, 0)
                self._s.extracted[stack] = after
            case (("mark_to_drop" | "drop"), _):
                self._set_standard("egress_spec", DROP)
                self._set_standard("mcast_grp", 0)
            case "count", (Name(_, array), index):
                at = self._value(index, args)
                if at < self.program.counters[array].size:
                    self._add(self.counters.setdefault((array, at), Counts()))
            case "modify_field_rng_uniform", (FieldRef() as target, low, high):
                first, last = self._value(low, args), self._value(high, args)
                if first <= last:
                    self._store(target, self._random(first, last))
            case "register_read", (FieldRef() as target, Name(_, array), index):
                at = self._value(index, args)
                inside = at < self.program.registers[array].size
                self._store(target, self.registers.get((array, at), 0) if inside else 0)
            case "register_write", (Name(_, array), index, value):
                at, register = self._value(index, args), self.program.registers[array]
                if at < register.size:
                    self.registers[array, at] = self._value(value, args) % (1 << register.width)
            case "modify_field_with_hash_based_offset", (FieldRef() as target, base, Name(_, name), size):
                result = self._hash(self.program.calculations[name])
                modulo = self._value(size, args) % (1 << 64) or 1
                self._store(target, result % modulo + self._value(base, args) % (1 << 64))
            case "generate_digest", (_, Const(number)):
                self._digest = number
            case "execute_meter", (Name(_, array), index, FieldRef() as target):
                at, declared = self._value(index, args), self.program.meters[array]
                if at < declared.size:
                    self._store(target, self._colour(self.meters.get((array, at)), declared))
            case "truncate", (length,):
                keep = self._value(length, args)
                self._s.cut = keep if self._s.cut is None else min(keep, self._s.cut)
            case (("clone_ingress_pkt_to_egress" | "clone_egress_pkt_to_egress"), (session, Const(fields))):
                self._s.clone = self._value(session, args) & 0x7FFF, fields
            case "resubmit", (Const(fields),):
                self._s.resubmit = fields
            case "recirculate", (Const(fields),):
                self._s.recirculate = fields
            case (("assert" | "assume"), (condition,)):
                if not self._value(condition, args):
                    raise AssertionFailedError
            case "exit", _:
                self._s.exited = True  # as in BMv2, the rest of the action still runs
            case (("no_op" | "log_msg"), _):
                pass
            case _:
                raise UnsupportedError(f"primitive '{p.op}'", str(p.source))

    def _zero(self, header: str) -> None:
        for f in self.program.headers[header].type.fields:
            self._store(FieldRef(header, f.name), 0)
        varbit = self.program.headers[header].type.varbit
        if varbit is not None:  # as in BMv2, a zeroed variable-length field keeps its length
            ref = FieldRef(header, varbit.name)
            self._s.varbits[ref] = bytes(len(self._s.varbits.get(ref, b"")))

    def _assign_header(self, to: str, origin: str) -> None:
        if self._s.valid.get(origin) or self.program.headers[origin].metadata:
            self._copy(to, origin)
            self._set_valid(to)
        else:  # an invalid origin makes the target invalid; the target's fields keep their values
            self._s.valid[to] = False

    def _copy(self, to: str, origin: str) -> None:
        self._s.valid[to] = self._s.valid.get(origin, False)
        for f in self.program.headers[to].type.fields:
            self._store(FieldRef(to, f.name), self._s.fields.get(FieldRef(origin, f.name), 0))
        varbit = self.program.headers[to].type.varbit
        if varbit is not None:
            content = self._s.varbits.get(FieldRef(origin, varbit.name), b"")
            self._s.varbits[FieldRef(to, varbit.name)] = content

    def _shift(self, stack: str, by: int) -> None:
        headers, depth = self.program.elements(stack), self.program.depth(stack)
        each = len(headers) // depth  # headers per element: 1, or more in a stack of unions
        order = range(depth) if by < 0 else reversed(range(depth))
        for i in order:
            for j in range(each):
                header = headers[i * each + j]
                if 0 <= i - by < depth:
                    self._copy(header, headers[(i - by) * each + j])
                else:
                    self._s.valid[header] = False
                    if by > 0:
                        self._zero(header)

    def _add(self, counts: Counts) -> None:
        counts.packets += 1
        counts.bytes += self._s.received

    def _colour(self, meter: Meter | None, declared: MeterArray) -> int:
        if meter is None:
            return 0
        return meter.colour(1 if declared.packets else self._s.received, self._clock())
