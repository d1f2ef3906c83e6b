"""A slow and readable interpreter of BMv2 JSON: what a frame becomes, written to be compared with targets.

It shares nothing with the compiler but the reader of the JSON. Numbers are Python's, so expressions are
evaluated as BMv2 does it: with whole numbers of any size, cut only when stored in a field.
"""

from __future__ import annotations

import contextlib
import random as random_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from linux.errors import UnsupportedError
from switches.hashes import HASHES
from switches.v1model.declarations import Action, Bits, Calculation, MeterArray
from switches.v1model.expressions import (
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Lookahead,
    Name,
    Op,
    Param,
    Primitive,
    StackField,
    UnionStackField,
    UnionStackHeader,
)
from switches.v1model.pipeline import ActionCall, Conditional, KeyField, Pipeline, Table
from switches.v1model.program import Program

DROP = 511
ROUNDS = 256  # how often a frame, or what became of it, goes through a switch once more
# Values of standard_metadata.instance_type.
INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATION, RESUBMITTED = 1, 2, 4, 5, 6
_STANDARD = "standard_metadata"


@dataclass(frozen=True)
class Exact:
    """Matches one value."""

    value: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number == self.value


@dataclass(frozen=True)
class Prefix:
    """Matches the first `length` bits of a value."""

    value: int
    length: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        rest = width - self.length
        return number >> rest == self.value >> rest


@dataclass(frozen=True)
class Masked:
    """Matches the bits of a value that are set in the mask."""

    value: int
    mask: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return number & self.mask == self.value & self.mask


@dataclass(frozen=True)
class Between:
    """Matches low..high, both included."""

    low: int
    high: int

    def matches(self, number: int, width: int) -> bool:
        """Whether a number of that width matches."""
        return self.low <= number <= self.high


Key = tuple[Exact | Prefix | Masked | Between, ...]


@dataclass(frozen=True)
class Rule:
    """A table entry. Of several that match, the longest prefix wins, else the highest priority.

    In a table with an action profile it has a member or a group by id, and no action.
    """

    key: Key
    action: str = ""
    args: tuple[int, ...] = ()
    priority: int = 0
    member: int | None = None
    group: int | None = None


@dataclass
class Profile:
    """An action profile: members by id, and groups of member ids in the order the hash counts them."""

    members: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    groups: dict[int, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CloneSession:
    """A clone session: port and instance of each copy, its bytes (0: all), and its class of service."""

    copies: Sequence[tuple[int, int]]
    length: int = 0
    class_of_service: int = 0


@dataclass
class Counts:
    """A counter cell."""

    packets: int = 0
    bytes: int = 0


@dataclass
class Meter:
    """A meter cell (RFC 2698, colour-blind): rates per second, bursts, and what its buckets have."""

    committed: int
    committed_burst: int
    peak: int
    peak_burst: int
    tokens: list[float] = field(default_factory=list)
    last_us: int = 0

    def colour(self, size: int, now_us: int) -> int:
        """Green, yellow or red (0, 1, 2) for a frame of so many tokens."""
        bursts, elapsed = (self.peak_burst, self.committed_burst), now_us - self.last_us
        if not self.tokens:
            self.tokens, elapsed = [float(b) for b in bursts], 0
        self.last_us = now_us
        for i, rate in enumerate((self.peak, self.committed)):
            self.tokens[i] = min(self.tokens[i] + rate * elapsed / 1e6, bursts[i])
        if self.tokens[0] < size:
            return 2
        self.tokens[0] -= size
        if self.tokens[1] < size:
            return 1
        self.tokens[1] -= size
        return 0


class _WrongError(Exception):
    """An assertion has failed; the frame is lost."""


class _ParserError(Exception):
    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class _State:
    """One frame on its way."""

    frame: bytes
    fields: dict[FieldRef, int] = field(default_factory=dict)
    valid: dict[str, bool] = field(default_factory=dict)
    offset: int = 0
    received: int = 0  # bytes when it came in
    length: int = 0  # what packet_length will be in egress
    cut: int | None = None  # what truncate() leaves of the frame
    exited: bool = False
    extracted: dict[str, int] = field(default_factory=dict)  # elements of each stack, up to the next one
    varbits: dict[FieldRef, bytes] = field(default_factory=dict)
    kind: int = 0  # why it begins anew: an instance type, 0 for a frame that came in
    rounds: int = 0  # how often it has begun anew
    session: int = 0  # where a clone goes
    kept: dict[FieldRef, int] = field(default_factory=dict)  # what an ingress clone has from its frame
    clone: tuple[int, int] | None = None  # the session and the field list that were asked for
    resubmit: int = 0  # the field list with which it was asked for
    recirculate: int = 0


class Interpreter:
    """Runs frames through a program with given entries; counters and registers last from frame to frame.

    `rules` maps table names to entries, `defaults` table names to (action, arguments) where the control plane
    has changed them. `random` draws a number from low to high, `clock` gives microseconds.
    """

    def __init__(
        self,
        program: Program,
        rules: Mapping[str, Sequence[Rule]] | None = None,
        defaults: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
        random: Callable[[int, int], int] = random_module.randint,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.program = program
        self.rules = dict(rules or {})
        self.defaults = dict(defaults or {})
        self.counters: dict[tuple[str, int], Counts] = {}
        self.direct: dict[tuple[str, Rule], Counts] = {}
        self.registers: dict[tuple[str, int], int] = {}
        self.learned: list[tuple[str, tuple[int, ...]]] = []  # digests
        self._digest = 0
        self.meters: dict[tuple[str, int], Meter] = {}
        self.direct_meters: dict[tuple[str, Rule], Meter] = {}
        self.groups: dict[int, list[tuple[int, int]]] = {}  # multicast: port and instance of each copy
        self.value_sets: dict[str, Sequence[Key]] = {}
        self.sessions: dict[int, CloneSession] = {}
        self.profiles: dict[str, Profile] = {name: Profile() for name in program.profiles}
        self._random = random
        self._clock = clock
        self._s = _State(b"")
        self._port = 0
        self._todo: list[_State] = []

    def run(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """What goes out, as (port, frame), when a frame comes in on a port."""
        self._port = port
        first = _State(frame, length=len(frame), received=len(frame))
        self._todo = [first]
        out = []
        while self._todo:
            self._s = self._todo.pop(0)
            with contextlib.suppress(_WrongError):
                out += self._round()
        return out

    def _round(self) -> list[tuple[int, bytes]]:
        """One way through the switch, from the parser or, for an egress clone, from egress on."""
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
                self._set_standard("ingress_port", self._port)  # for the parser only
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
        """Let a frame begin anew, unless what it comes from has done so too often."""
        s = self._s
        fresh = _State(frame, received=s.received, length=s.received, kind=kind, rounds=s.rounds + 1)
        if s.rounds < ROUNDS:
            self._todo.append(replace(fresh, **changes))

    def _preserved(self, number: int) -> dict[FieldRef, int]:
        fields = self.program.field_lists[number].fields if number in self.program.field_lists else ()
        return {ref: self._s.fields.get(ref, 0) for ref in fields}

    def _of_headers(self) -> dict[FieldRef, int]:
        headers = self.program.headers
        return {ref: value for ref, value in self._s.fields.items() if not headers[ref.header].metadata}

    def _session(self) -> list[tuple[int, bytes]]:
        """The copies of a clone session; one that is not there makes none."""
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
        s.cut = None  # what was cut is the frame, not what is copied of it
        out = []
        for port, instance in sorted(copies, key=lambda copy: (copy[1], copy[0])):
            self._s = replace(s, fields=dict(s.fields), valid=dict(s.valid), varbits=dict(s.varbits))
            self._set_standard("egress_rid", instance)
            with contextlib.suppress(_WrongError):
                out += self._egress(port)
        return out

    def _egress(self, out: int) -> list[tuple[int, bytes]]:
        s = self._s
        self._set_standard("egress_port", out)
        self._set_standard("egress_spec", 0)
        self._set_standard("packet_length", s.length)
        for name in ("enq_timestamp", "egress_global_timestamp"):  # no frame ever waits here
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
        return [] if s.cut == 0 else [(out, whole[: s.cut])]  # BMv2 loses what has nothing left

    # -- fields --------------------------------------------------------------------------------------------

    def _standard(self, name: str) -> int:
        return self._s.fields.get(FieldRef(_STANDARD, name), 0)

    def _set_standard(self, name: str, value: int) -> None:
        self._store(FieldRef(_STANDARD, name), value)

    def _load(self, ref: FieldRef) -> int:
        if ref.field == "$valid$":
            return int(self._s.valid.get(ref.header, False))
        raw, f = self._s.fields.get(ref, 0), self.program.field(ref)
        return raw - (1 << f.width) if f.signed and raw >> (f.width - 1) else raw

    def _store(self, ref: FieldRef, value: int) -> None:
        self._s.fields[ref] = value % (1 << self.program.field(ref).width)

    def _emit(self, header: str) -> bytes:
        kind, value = self.program.headers[header].type, 0
        for f in kind.fields:
            value = value << f.width | self._s.fields.get(FieldRef(header, f.name), 0)
        fixed = value.to_bytes(kind.bits // 8, "big")
        if kind.varbit is None:
            return fixed
        at = kind.varbit.offset // 8
        return fixed[:at] + self._s.varbits.get(FieldRef(header, kind.varbit.name), b"") + fixed[at:]

    def _size(self, header: str) -> int:
        """Bytes that a header takes in the frame."""
        kind = self.program.headers[header].type
        varbit = b"" if kind.varbit is None else self._s.varbits.get(FieldRef(header, kind.varbit.name), b"")
        return kind.bits // 8 + len(varbit)

    def _set_valid(self, header: str) -> None:
        self._s.valid[header] = True
        for rival in self.program.rivals(header):
            self._s.valid[rival] = False

    # -- parser --------------------------------------------------------------------------------------------

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
        except _ParserError as error:
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

    def _fail(self, name: str) -> _ParserError:
        return _ParserError(self.program.errors.get(name, 0))

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
                    raise _ParserError(self._value(op.args[1], ()))
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

    # -- checksums -----------------------------------------------------------------------------------------

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

    # -- controls ------------------------------------------------------------------------------------------

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

    def _colour(self, meter: Meter | None, declared: MeterArray) -> int:
        if meter is None:
            return 0
        return meter.colour(1 if declared.packets else self._s.received, self._clock())

    def _member(self, name: str, rule: Rule) -> tuple[str, tuple[int, ...]] | None:
        """The action that a rule of a table with an action profile comes to, None for an empty group."""
        profile, member = self.profiles[name], rule.member
        if rule.group is not None:
            places, selector = profile.groups[rule.group], self.program.profiles[name].selector
            if not places or selector is None:
                return None
            member = places[(self._hash(selector) & 0xFFFFFFFF) % len(places)]
        assert member is not None
        return profile.members[member]

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

    def _add(self, counts: Counts) -> None:
        counts.packets += 1
        counts.bytes += self._s.received

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
                    raise _WrongError
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
        else:  # the fields keep what they had
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

    # -- expressions ---------------------------------------------------------------------------------------

    def _header(self, expr: Expr | None, args: tuple[int, ...]) -> str | None:
        """The header that an expression denotes, None beyond the end of a stack."""
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
            case Op(op=op, left=left, right=right) if op in _NUMERIC:
                return _NUMERIC[op](self._value(left, args), self._value(right, args))
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
            case Op(op=op, left=left, right=right) if op in _COMPARE:
                return _COMPARE[op](self._value(left, args), self._value(right, args))
        raise UnsupportedError("a condition that is not boolean")


def _divide(a: int, b: int) -> int:
    """Towards zero; what is divided by zero is zero."""
    if not b:
        return 0
    return a // b if (a < 0) == (b < 0) else -(-a // b)


def _modulo(value: int, width: int) -> int:
    low = value % (1 << width)
    return low - (1 << width) if low >> (width - 1) else low


_NUMERIC: dict[str, Callable[[int, int], int]] = {
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
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
