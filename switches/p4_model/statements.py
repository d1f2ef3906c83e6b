"""Statements and actions."""

from __future__ import annotations

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.p4_model.entries import (
    Counts,
    Meter,
)
from mrclab.switches.p4_model.expressions import Expressions
from mrclab.switches.p4_model.frame import (
    DROP,
    AssertionFailedError,
)
from mrclab.switches.v1model.declarations import Action, MeterArray
from mrclab.switches.v1model.expressions import (
    Const,
    FieldRef,
    Name,
    Primitive,
)


class Statements(Expressions):
    """Executes actions on the frame at hand."""

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
                self._s.exited = True  # the rest of this action still runs
            case (("no_op" | "log_msg"), _):
                pass
            case _:
                raise UnsupportedError(f"primitive '{p.op}'", str(p.source))

    def _zero(self, header: str) -> None:
        for f in self.program.headers[header].type.fields:
            self._store(FieldRef(header, f.name), 0)
        varbit = self.program.headers[header].type.varbit
        if varbit is not None:  # as in BMv2 it keeps its length
            ref = FieldRef(header, varbit.name)
            self._s.varbits[ref] = bytes(len(self._s.varbits.get(ref, b"")))

    def _assign_header(self, to: str, origin: str) -> None:
        if self._s.valid.get(origin) or self.program.headers[origin].metadata:
            self._copy(to, origin)
            self._set_valid(to)
        else:  # the fields keep their values
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
        each = len(headers) // depth  # more than one in a stack of unions
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
