"""Run a frame through parser, ingress, replication, egress and deparser.

Each class extends the previous one. `ParserModel` parses, `Controls` adds controls, tables and checksums, and
`Interpreter` adds the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.p4_model.machine import (
    DROP,
    EGRESS_CLONE,
    INGRESS_CLONE,
    RECIRCULATED,
    REPLICATION,
    RESUBMITTED,
    AssertionFailedError,
    Between,
    Counts,
    Exact,
    FrameState,
    Masked,
    ParserError,
    Prefix,
    Rule,
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
from mrclab.switches.v1model.program import ActionCall, Conditional, KeyField, Pipeline, Table


class ParserModel(Statements):
    """Parse the current frame."""

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
        length = 0  # length of the variable-length field, in bytes
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


class Controls(ParserModel):
    """Run controls (ingress and egress) on the current frame."""

    def _verify_checksums(self) -> None:
        for c in self.program.checksums:
            header = c.target.header
            there = self.program.headers[header].metadata or self._s.valid.get(header, False)
            if c.verify and there and (c.condition is None or self._truth(c.condition, ())):
                computed = self._hash(self.program.calculations[c.calculation])
                if computed != self._s.fields.get(c.target, 0):
                    self._set_standard("checksum_error", 1)

    def _update_checksums(self) -> None:
        for c in self.program.checksums:
            if c.update and (c.condition is None or self._truth(c.condition, ())):
                self._store(c.target, self._hash(self.program.calculations[c.calculation]))

    def _control(self, pipeline: Pipeline) -> None:
        at = pipeline.start
        while at is not None and not self._s.exited:
            node = pipeline.nodes[at]
            match node:
                case Conditional():
                    at = node.true_next if self._truth(node.expr, ()) else node.false_next
                case Table():
                    at = self._table(node)
                case ActionCall():
                    self._action(self.program.actions[node.action_id], ())
                    at = node.next
        self._s.exited = False

    def _table(self, table: Table) -> str | None:
        rule = self._find(table)
        if rule is not None:
            name, args = rule.action, rule.args
            if table.with_counters:
                self._add(self.direct.setdefault((table.name, rule), Counts()))
            if table.direct_meters is not None:
                declared = self.program.meters[table.direct_meters]
                assert declared.result is not None
                meter = self.direct_meters.get((table.name, rule))
                self._store(declared.result, self._colour(meter, declared))
            if table.profile is not None:
                chosen = self._member(table.profile, rule)
                if chosen is None:
                    return table.next_by_action.get("__HIT__", table.base_default_next)
                name, args = chosen
            action = next(a for i in table.action_ids if (a := self.program.actions[i]).name == name)
        elif table.name in self.defaults:
            name, args = self.defaults[table.name]
            action = next(a for i in table.action_ids if (a := self.program.actions[i]).name == name)
        elif table.default is not None:
            action, args = self.program.actions[table.default.action_id], table.default.data
        else:
            return table.next_by_action.get("__MISS__", table.base_default_next)
        self._action(action, args)
        choice = "__HIT__" if rule is not None else "__MISS__"
        if choice in table.next_by_action:
            return table.next_by_action[choice]
        return table.next_by_action.get(action.name, table.base_default_next)

    def _member(self, name: str, rule: Rule) -> tuple[str, tuple[int, ...]] | None:
        """Return the action of the member that a rule selects in a profile; None for an empty group."""
        profile, member = self.profiles[name], rule.member
        if rule.group is not None:
            places, selector = profile.groups[rule.group], self.program.profiles[name].selector
            if not places or selector is None:
                return None
            member = places[(self._hash(selector) & 0xFFFFFFFF) % len(places)]
        assert member is not None
        return profile.members[member]

    def _find(self, table: Table) -> Rule | None:
        def key_value(k: KeyField) -> int:
            raw = self._load(k.target) % (1 << self.program.field(k.target).width)
            return raw if k.mask is None else raw & k.mask

        if not table.key:
            return None
        values = [(key_value(k), self.program.field(k.target).width) for k in table.key]
        found = [
            r
            for r in [*self.rules.get(table.name, ()), *self._constant(table)]
            if all(m.matches(v, w) for m, (v, w) in zip(r.key, values, strict=True))
        ]

        def rank(r: Rule) -> tuple[int, int]:
            length = sum(m.length for m in r.key if isinstance(m, Prefix)) if table.match == "lpm" else 0
            return length, r.priority

        return max(found, key=rank, default=None)

    def _constant(self, table: Table) -> list[Rule]:
        out = []
        for e in table.entries:
            key: list[Exact | Prefix | Masked | Between] = []
            for m in e.key:
                match m.match:
                    case "lpm":
                        key.append(Prefix(m.key, m.prefix))
                    case "ternary" | "optional":
                        key.append(Masked(m.key, m.mask))
                    case "range":
                        key.append(Between(m.key, m.end))
                    case _:
                        key.append(Exact(m.key))
            out.append(Rule(tuple(key), self.program.actions[e.action_id].name, e.data, -e.priority))
        return out


ROUNDS = 256  # longest chain of clones, resubmissions and recirculations; then the frame is dropped


class Interpreter(Controls):
    """Run frames through a program with given entries. Counters and registers keep their values.

    `rules` maps table names to entries. `defaults` maps table names to default actions (action, arguments)
    that the control plane has set. `random` returns a number from low to high. `clock` returns the time, us.
    """

    def run(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Process a frame that arrives on a port. Return the outgoing frames as (port, frame)."""
        self._port = port
        first = FrameState(frame, length=len(frame), received=len(frame))
        self._todo = [first]
        out = []
        while self._todo:
            self._s = self._todo.pop(0)
            with contextlib.suppress(AssertionFailedError):
                out += self._round()
        return out

    def _round(self) -> list[tuple[int, bytes]]:
        """Run the current frame through the switch. Egress clones start at egress, other frames at parser."""
        s = self._s
        match s.kind:
            case 0:
                self._set_standard("ingress_port", self._port)
                self._set_standard("packet_length", len(s.frame))
                self._set_standard("ingress_global_timestamp", self._clock())
            case int(kind) if kind in (RECIRCULATED, RESUBMITTED):
                self._set_standard("packet_length", s.received)
                self._set_standard("instance_type", kind)
            case int(kind) if kind == INGRESS_CLONE:
                self._set_standard("ingress_port", self._port)  # set only while the clone is parsed
                self._parse()
                s.fields = self._of_headers() | s.kept
                return self._session()
            case _:
                return self._session()
        return self._ingress()

    def _ingress(self) -> list[tuple[int, bytes]]:
        s = self._s
        self._parse()
        self._digest = 0
        self._verify_checksums()
        self._control(self.program.ingress)
        if s.clone is not None:
            number, fields = s.clone
            self._again(INGRESS_CLONE, s.frame, kept=self._preserved(fields), session=number)
            s.clone = None
        if self._digest in self.program.digests:
            declared = self.program.digests[self._digest]
            self.learned.append((declared.name, tuple(s.fields.get(ref, 0) for ref in declared.fields)))
        if s.resubmit:
            self._again(RESUBMITTED, s.frame, fields=self._preserved(s.resubmit))
            return []
        if group := self._standard("mcast_grp"):
            self._set_standard("instance_type", REPLICATION)
            return self._copies(self.groups.get(group, []))
        out = self._standard("egress_spec")
        self._set_standard("instance_type", 0)
        return [] if out == DROP else self._egress(out)

    def _again(self, kind: int, frame: bytes, **changes: Any) -> None:
        """Queue a clone, or a resubmitted or recirculated frame. After ROUNDS repeats, drop the frame."""
        s = self._s
        fresh = FrameState(frame, received=s.received, length=s.received, kind=kind, rounds=s.rounds + 1)
        if s.rounds < ROUNDS:
            self._todo.append(replace(fresh, **changes))

    def _preserved(self, number: int) -> dict[FieldRef, int]:
        fields = self.program.field_lists[number].fields if number in self.program.field_lists else ()
        return {ref: self._s.fields.get(ref, 0) for ref in fields}

    def _of_headers(self) -> dict[FieldRef, int]:
        headers = self.program.headers
        return {ref: value for ref, value in self._s.fields.items() if not headers[ref.header].metadata}

    def _session(self) -> list[tuple[int, bytes]]:
        """Return the copies of a clone session. A session that does not exist makes no copies."""
        s, session = self._s, self.sessions.get(self._s.session)
        if session is None:
            return []
        self._set_standard("instance_type", s.kind)
        self._set_standard("priority", session.class_of_service)
        if session.length:
            order = self.program.deparser.order
            head = sum(self._size(h) for h in order if s.valid.get(h))
            keep = max(session.length, head)
            s.frame, s.length = s.frame[: s.offset + keep - head], min(s.length, keep)
        return self._copies(session.copies)

    def _copies(self, copies: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
        s = self._s
        s.cut = None  # truncate() in ingress has no effect on copies
        out = []
        for port, instance in sorted(copies, key=lambda copy: (copy[1], copy[0])):
            self._s = replace(s, fields=dict(s.fields), valid=dict(s.valid), varbits=dict(s.varbits))
            self._set_standard("egress_rid", instance)
            with contextlib.suppress(AssertionFailedError):
                out += self._egress(port)
        return out

    def _egress(self, out: int) -> list[tuple[int, bytes]]:
        s = self._s
        self._set_standard("egress_port", out)
        self._set_standard("egress_spec", 0)
        self._set_standard("packet_length", s.length)
        for name in ("enq_timestamp", "egress_global_timestamp"):  # the model has no queue: no frame waits
            self._set_standard(name, self._clock())
        for name in ("enq_qdepth", "deq_timedelta", "deq_qdepth"):
            self._set_standard(name, 0)
        self._control(self.program.egress)
        if s.clone is not None:
            number, fields = s.clone
            state = {
                "valid": dict(s.valid),
                "varbits": dict(s.varbits),
                "offset": s.offset,
                "length": s.length,
            }
            kept = self._of_headers() | self._preserved(fields)
            self._again(EGRESS_CLONE, s.frame, session=number, fields=kept, **state)
            s.clone = None
        if self._standard("egress_spec") == DROP:
            return []
        self._update_checksums()
        for p in self.program.deparser.primitives:
            self._statement(p, ())
        headers = b"".join(self._emit(h) for h in self.program.deparser.order if s.valid.get(h))
        whole = headers + s.frame[s.offset :]
        if s.recirculate:
            kept, size = self._preserved(s.recirculate), len(whole)
            self._again(RECIRCULATED, whole, fields=kept, received=size, length=size)
            return []
        return [] if s.cut == 0 else [(out, whole[: s.cut])]  # BMv2 drops an empty frame
