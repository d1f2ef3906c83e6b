"""The BMv2 JSON that p4c writes for v1model, as frozen values.

The format is described in docs/JSON_format.md of p4lang/behavioral-model (version 2.24). Reading
checks shape only: whether a target can run what the JSON asks is for the target to say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Any

from linux.errors import BadInputError, UnsupportedError


@dataclass(frozen=True)
class Source:
    """Where in the P4 source something came from; line 0 when p4c did not say."""

    filename: str = ""
    line: int = 0
    fragment: str = ""

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename


NOWHERE = Source()


@dataclass(frozen=True)
class Field:
    """A header field; `offset` is its distance in bits from the first bit of its header."""

    name: str
    width: int
    signed: bool
    offset: int


@dataclass(frozen=True)
class Varbit:
    """A field of variable length, behind `offset` bits of its header; it has `size` bytes at most."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class HeaderType:
    """A header or struct type. The offsets of its fields leave out the `varbit`, if it has one."""

    name: str
    fields: tuple[Field, ...]
    varbit: Varbit | None = None

    @property
    def bits(self) -> int:
        """Width of the fixed fields, in bits."""
        return sum(f.width for f in self.fields)

    def name_at(self, index: int) -> str:
        """The name of a field by its place in the declaration."""
        names = [f.name for f in self.fields]
        if self.varbit is not None:
            before = sum(f.offset < self.varbit.offset for f in self.fields)
            names.insert(before, self.varbit.name)
        return names[index]


@dataclass(frozen=True)
class Header:
    """A header or metadata instance."""

    name: str
    type: HeaderType
    metadata: bool

    @cached_property
    def field_by_name(self) -> dict[str, Field]:
        """The fields, by name."""
        return {f.name: f for f in self.type.fields}


@dataclass(frozen=True)
class HeaderStack:
    """A header stack: the names of its elements, in order."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class HeaderUnion:
    """A header union: its headers, of which one at most is valid."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class UnionStack:
    """A stack of header unions: the names of its elements, and those of the headers in each, in order."""

    name: str
    members: tuple[str, ...]
    headers: tuple[str, ...]


# Expressions. Each knows nothing of its width: BMv2 computes with whole numbers of any size and cuts a
# result to the width of the field it is stored in.


@dataclass(frozen=True)
class FieldRef:
    """A field of a header instance, or its hidden one-bit field `$valid$`."""

    header: str
    field: str


@dataclass(frozen=True)
class Const:
    """A whole number."""

    value: int


@dataclass(frozen=True)
class BoolConst:
    """A truth value."""

    value: bool


@dataclass(frozen=True)
class Param:
    """A parameter of the enclosing action, by position."""

    index: int


@dataclass(frozen=True)
class Name:
    """A named object: `kind` is header, header_stack, counter_array, register_array, calculation, ..."""

    kind: str
    name: str


@dataclass(frozen=True)
class StackField:
    """A field of the last element of a stack that was extracted."""

    stack: str
    field: str


@dataclass(frozen=True)
class UnionStackHeader:
    """A header of the next element of a stack of unions, as an extract names it."""

    stack: str
    header: str


@dataclass(frozen=True)
class UnionStackField:
    """A field of a header of the last element of a stack of unions that was extracted."""

    stack: str
    header: str
    field: str


@dataclass(frozen=True)
class Lookahead:
    """Bits of the packet beyond the parser's position: `offset` and `width` in bits."""

    offset: int
    width: int


@dataclass(frozen=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True)
class Vector:
    """Several values."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Op:
    """An operation on one, two or (`?`) three operands; an unary one has only `right`."""

    op: str
    left: Expr | None
    right: Expr | None
    cond: Expr | None = None


Expr = (
    FieldRef
    | Const
    | BoolConst
    | Param
    | Name
    | StackField
    | UnionStackHeader
    | UnionStackField
    | Lookahead
    | Text
    | Vector
    | Op
)


@dataclass(frozen=True)
class Primitive:
    """One statement of an action, or one operation of a parser state."""

    op: str
    args: tuple[Expr, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class ActionParam:
    """A parameter of an action; width in bits."""

    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action. Names may repeat in a program, ids do not."""

    name: str
    id: int
    params: tuple[ActionParam, ...]
    primitives: tuple[Primitive, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class Transition:
    """A transition of a parser state; `kind` is default, hexstr or parse_vset, next None is accept.

    A parse_vset one is taken when the key is in the value set named `value_set`.
    """

    kind: str
    value: int
    mask: int | None
    next: str | None
    value_set: str | None = None


@dataclass(frozen=True)
class ParserState:
    """A state of the parser."""

    name: str
    ops: tuple[Primitive, ...]
    key: tuple[Expr, ...]
    transitions: tuple[Transition, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class Parser:
    """A parser: its states by name."""

    name: str
    start: str
    states: Mapping[str, ParserState]


@dataclass(frozen=True)
class KeyField:
    """An element of a table's key; `match` is exact, lpm, ternary, range, optional or valid."""

    match: str
    target: FieldRef
    mask: int | None
    name: str


@dataclass(frozen=True)
class ConstMatch:
    """An element of the key of an entry written in the program."""

    match: str
    key: int
    mask: int = 0
    prefix: int = 0
    end: int = 0


@dataclass(frozen=True)
class ConstEntry:
    """An entry written in the program. A low `priority` goes first."""

    key: tuple[ConstMatch, ...]
    action_id: int
    data: tuple[int, ...]
    priority: int


@dataclass(frozen=True)
class DefaultEntry:
    """What a table does on a miss."""

    action_id: int
    data: tuple[int, ...]
    const: bool


@dataclass(frozen=True)
class Table:
    """A match-action table. `next_by_action` is keyed by action name, `__HIT__` or `__MISS__`."""

    name: str
    id: int
    key: tuple[KeyField, ...]
    match: str
    kind: str
    size: int
    with_counters: bool
    support_timeout: bool
    direct_meters: str | None
    action_ids: tuple[int, ...]
    base_default_next: str | None
    next_by_action: Mapping[str, str | None]
    default: DefaultEntry | None
    entries: tuple[ConstEntry, ...]
    profile: str | None = None
    source: Source = NOWHERE


@dataclass(frozen=True)
class Conditional:
    """A branch of a control."""

    name: str
    expr: Expr
    true_next: str | None
    false_next: str | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class ActionCall:
    """A bare call of an action."""

    name: str
    action_id: int
    next: str | None
    source: Source = NOWHERE


Node = Table | Conditional | ActionCall


@dataclass(frozen=True)
class Pipeline:
    """A control: its first node (None: it does nothing) and all nodes by name."""

    name: str
    start: str | None
    nodes: Mapping[str, Node]


@dataclass(frozen=True)
class CounterArray:
    """A counter array; a direct one names its table and takes that table's size."""

    name: str
    id: int
    size: int
    table: str | None


@dataclass(frozen=True)
class MeterArray:
    """A meter array. A direct one names its table, and the field that gets the colour before its action."""

    name: str
    size: int
    packets: bool  # else it counts bytes
    rates: int
    table: str | None = None
    result: FieldRef | None = None
    source: Source = NOWHERE


@dataclass(frozen=True)
class ValueSet:
    """A parser value set: how many bits its members have, each field in whole bytes, and how many fit."""

    name: str
    bits: int
    size: int
    source: Source = NOWHERE


@dataclass(frozen=True)
class DigestList:
    """What a digest takes to the controller: the fields of each message, in order."""

    name: str
    id: int
    fields: tuple[FieldRef, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class FieldList:
    """The fields that a clone keeps, or a frame that goes through the switch once more."""

    name: str
    id: int
    fields: tuple[FieldRef, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class RegisterArray:
    """A register array; width in bits."""

    name: str
    size: int
    width: int
    source: Source = NOWHERE


@dataclass(frozen=True)
class Calculation:
    """A hash: its algorithm by BMv2's name, and what it is taken over.

    The input is a string of bits, most significant first: fields and constants in a row, the last byte filled
    with zeros. A field of a header that is not valid adds nothing. `Bits` is a constant of given width. A
    Name of kind `payload` stands for what of the frame was not parsed, behind all the rest.
    """

    name: str
    algorithm: str
    input: tuple[FieldRef | Bits | Name, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class Checksum:
    """A checksum: a field that shall hold what a calculation yields, where its condition is true.

    One to `verify` is looked at behind the parser and sets standard_metadata.checksum_error, one to `update`
    is written before the deparser.
    """

    name: str
    calculation: str
    target: FieldRef
    verify: bool
    update: bool
    condition: Expr | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class Bits:
    """A constant of `width` bits."""

    value: int
    width: int


@dataclass(frozen=True)
class ActionProfile:
    """An action profile; one with a `selector` is an action selector, which hashes to choose a member."""

    name: str
    size: int
    selector: Calculation | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class Deparser:
    """The order in which valid headers go out."""

    order: tuple[str, ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True)
class Unread:
    """A part of the program this reader keeps only by name, so that a target can refuse it."""

    what: str
    name: str
    source: Source = NOWHERE


@dataclass(frozen=True)
class Program:
    """A whole v1model program."""

    name: str
    headers: Mapping[str, Header]
    stacks: Mapping[str, HeaderStack]
    parser: Parser
    ingress: Pipeline
    egress: Pipeline
    deparser: Deparser
    actions: Mapping[int, Action]
    counters: Mapping[str, CounterArray]
    registers: Mapping[str, RegisterArray]
    errors: Mapping[str, int]
    meters: Mapping[str, MeterArray] = field(default_factory=dict)
    value_sets: Mapping[str, ValueSet] = field(default_factory=dict)
    digests: Mapping[int, DigestList] = field(default_factory=dict)
    field_lists: Mapping[int, FieldList] = field(default_factory=dict)
    calculations: Mapping[str, Calculation] = field(default_factory=dict)
    profiles: Mapping[str, ActionProfile] = field(default_factory=dict)
    checksums: tuple[Checksum, ...] = ()
    unread: tuple[Unread, ...] = ()
    aliases: Mapping[str, FieldRef] = field(default_factory=dict)
    unions: Mapping[str, HeaderUnion] = field(default_factory=dict)
    union_stacks: Mapping[str, UnionStack] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the P4 file, for what p4c gives no line."""
        return PurePath(self.name).name

    def elements(self, name: str) -> tuple[str, ...]:
        """The headers of a header stack, of a union, or of all elements of a stack of unions."""
        if name in self.stacks:
            return self.stacks[name].members
        if name in self.unions:
            return self.unions[name].members
        return tuple(h for u in self.union_stacks[name].members for h in self.unions[u].members)

    def named(self, name: Name) -> tuple[str, ...]:
        """The headers that a name of a header, a union or a stack of either stands for."""
        return (name.name,) if name.name in self.headers else self.elements(name.name)

    def depth(self, stack: str) -> int:
        """How many elements a stack of headers or unions has."""
        return len((self.stacks.get(stack) or self.union_stacks[stack]).members)

    def element(self, stack: str, index: int, header: str | None = None) -> str:
        """An element of a stack of headers; of one of unions, the header of this name in the element."""
        if header is None:
            return self.stacks[stack].members[index]
        unions = self.union_stacks[stack]
        return self.unions[unions.members[index]].members[unions.headers.index(header)]

    def rivals(self, header: str) -> tuple[str, ...]:
        """The headers that are not valid any more once this one is."""
        return self._rivals.get(header, ())

    @cached_property
    def _rivals(self) -> dict[str, tuple[str, ...]]:
        return {h: tuple(o for o in u.members if o != h) for u in self.unions.values() for h in u.members}

    def varbit(self, ref: FieldRef) -> Varbit | None:
        """The declaration of a field of variable length, None for any other."""
        kind = self.headers[ref.header].type
        return kind.varbit if kind.varbit is not None and kind.varbit.name == ref.field else None

    def tables(self) -> list[Table]:
        """Every table of both controls, in the order of the JSON."""
        return [n for p in (self.ingress, self.egress) for n in p.nodes.values() if isinstance(n, Table)]

    def field(self, ref: FieldRef) -> Field:
        """The declaration of a field; `$valid$` is one bit wide."""
        if ref.field == "$valid$":
            return Field("$valid$", 1, False, 0)
        return self.headers[ref.header].field_by_name[ref.field]

    def direct_counter(self, table: str) -> CounterArray | None:
        """The direct counter array of a table, if it has one."""
        return next((c for c in self.counters.values() if c.table == table), None)


def _number(text: str | int) -> int:
    return text if isinstance(text, int) else int(text, 16)


def _source(obj: Mapping[str, Any]) -> Source:
    info = obj.get("source_info")
    if not info:
        return NOWHERE
    return Source(info.get("filename", ""), int(info.get("line", 0)), info.get("source_fragment", ""))


def _expr(obj: Any) -> Expr:
    if isinstance(obj, int):
        return Const(obj)
    if "op" in obj and "type" not in obj:
        left, right, cond = (obj.get(k) for k in ("left", "right", "cond"))
        return Op(
            obj["op"],
            None if left is None else _expr(left),
            None if right is None else _expr(right),
            None if cond is None else _expr(cond),
        )
    kind, value = obj["type"], obj.get("value")
    match kind:
        case "expression":
            return _expr(value)
        case "field" if isinstance(value[0], dict):  # $valid$ of an element of a stack
            return Op("valid", None, _expr(value[0]))
        case "field":
            return FieldRef(*value)
        case "hexstr":
            return Const(_number(value))
        case "bool":
            return BoolConst(bool(value))
        case "runtime_data" | "local":
            return Param(int(value))
        case "stack_field":
            return StackField(*value)
        case "union_stack":
            return UnionStackHeader(*value)
        case "union_stack_field":
            return UnionStackField(*value)
        case "lookahead":
            return Lookahead(*value)
        case "string":
            return Text(value)
        case "parameters_vector":
            return Vector(tuple(_expr(v) for v in value))
        case "regular":
            return Name("header", value)
        case "stack":
            return Name("header_stack", value)
    if isinstance(value, str):
        return Name(kind, value)
    return Name(kind, json.dumps(value))


def _primitive(obj: Mapping[str, Any]) -> Primitive:
    if obj["op"] == "primitive":  # a parser's way to call what an action calls by itself
        inner = obj["parameters"][0]
        return _primitive({**inner, "source_info": inner.get("source_info") or obj.get("source_info")})
    return Primitive(obj["op"], tuple(_expr(p) for p in obj.get("parameters", [])), _source(obj))


def _header_type(obj: Mapping[str, Any]) -> HeaderType:
    fields: list[Field] = []
    offset, varbit = 0, None
    for name, width, *rest in obj["fields"]:
        if width == "*":
            varbit = name, offset
            continue
        fields.append(Field(name, width, bool(rest and rest[0]), offset))
        offset += width
    if varbit is None:
        return HeaderType(obj["name"], tuple(fields))
    size = (obj.get("max_length") or 0) - offset // 8
    return HeaderType(obj["name"], tuple(fields), Varbit(*varbit, max(size, 0)))


def _parser(obj: Mapping[str, Any]) -> Parser:
    states = {}
    for s in obj["parse_states"]:
        transitions = tuple(
            Transition(
                t.get("type", "hexstr"),
                _number(t["value"]) if t.get("type") == "hexstr" else 0,
                _number(t["mask"]) if t.get("mask") is not None else None,
                t["next_state"],
                t["value"] if t.get("type") == "parse_vset" else None,
            )
            for t in s["transitions"]
        )
        states[s["name"]] = ParserState(
            s["name"],
            tuple(_primitive(o) for o in s["parser_ops"]),
            tuple(_expr(k) for k in s["transition_key"]),
            transitions,
            _source(s),
        )
    return Parser(obj["name"], obj["init_state"], states)


def _const_entry(obj: Mapping[str, Any]) -> ConstEntry:
    keys = []
    for k in obj["match_key"]:
        kind = k["match_type"]
        if kind == "range":
            keys.append(ConstMatch(kind, _number(k["start"]), end=_number(k["end"])))
            continue
        raw = k["key"]
        mask = _number(k["mask"]) if k.get("mask") is not None else 0
        keys.append(
            ConstMatch(
                kind, int(raw) if isinstance(raw, bool) else _number(raw), mask, k.get("prefix_length", 0)
            )
        )
    action = obj["action_entry"]
    data = tuple(_number(d) for d in action["action_data"])
    return ConstEntry(tuple(keys), action["action_id"], data, obj.get("priority", 0))


def _table(obj: Mapping[str, Any]) -> Table:
    for k in obj["key"]:
        if isinstance(k["target"], dict):
            # p4c writes this for an element of a stack by a computed index, and BMv2 does not take it either.
            name = k.get("name") or "of an expression"
            raise UnsupportedError(
                f"key {name} of table {obj['name']}, which is no field,", str(_source(obj))
            )
    key = tuple(
        KeyField(
            k["match_type"],
            FieldRef(*k["target"]) if isinstance(k["target"], list) else FieldRef(k["target"], "$valid$"),
            _number(k["mask"]) if k.get("mask") is not None else None,
            k.get("name") or ".".join(k["target"]),
        )
        for k in obj["key"]
    )
    default = obj.get("default_entry")
    return Table(
        name=obj["name"],
        id=obj["id"],
        key=key,
        match=obj["match_type"],
        kind=obj["type"],
        size=obj.get("max_size", 1024),
        with_counters=bool(obj.get("with_counters")),
        support_timeout=bool(obj.get("support_timeout")),
        direct_meters=obj.get("direct_meters"),
        action_ids=tuple(obj["action_ids"]),
        base_default_next=obj.get("base_default_next"),
        next_by_action=dict(obj["next_tables"]),
        default=None
        if default is None
        else DefaultEntry(
            default["action_id"],
            tuple(_number(d) for d in default.get("action_data", [])),
            bool(default.get("action_entry_const", False)),
        ),
        entries=tuple(_const_entry(e) for e in obj.get("entries", [])),
        profile=obj.get("action_profile"),
        source=_source(obj),
    )


def _meter(obj: Mapping[str, Any]) -> MeterArray:
    target = obj.get("result_target")
    return MeterArray(
        name=obj["name"],
        size=obj.get("size", 0),
        packets=obj["type"] == "packets",
        rates=obj.get("rate_count", 2),
        table=obj.get("binding"),
        result=None if target is None else FieldRef(*target),
        source=_source(obj),
    )


def _pipeline(obj: Mapping[str, Any]) -> Pipeline:
    nodes: dict[str, Node] = {t["name"]: _table(t) for t in obj["tables"]}
    for c in obj["conditionals"]:
        nodes[c["name"]] = Conditional(
            c["name"], _expr(c["expression"]), c["true_next"], c["false_next"], _source(c)
        )
    for a in obj.get("action_calls", []):
        nodes[a["name"]] = ActionCall(a["name"], a["action_id"], a["next_node"], _source(a))
    return Pipeline(obj["name"], obj["init_table"], nodes)


def _union_stacks(raw: Mapping[str, Any]) -> dict[str, UnionStack]:
    types = {t["name"]: tuple(h[0] for h in t["headers"]) for t in raw.get("header_union_types", [])}
    by_id = {u["id"]: u["name"] for u in raw.get("header_unions", [])}
    return {
        s["name"]: UnionStack(
            s["name"], tuple(by_id[i] for i in s["header_union_ids"]), types[s["union_type"]]
        )
        for s in raw.get("header_union_stacks", [])
    }


def _unread(raw: Mapping[str, Any]) -> tuple[Unread, ...]:
    kinds = {
        "extern_instances": "extern",
    }
    named = [(what, o) for key, what in kinds.items() for o in raw.get(key, [])]
    named += [("checksum", c) for c in raw.get("checksums", []) if c.get("type") != "generic"]
    return tuple(Unread(what, o["name"], _source(o)) for what, o in named)


def _hashed(obj: Mapping[str, Any]) -> FieldRef | Bits | Name:
    match obj["type"]:
        case "field":
            return FieldRef(*obj["value"])
        case "hexstr":
            return Bits(_number(obj["value"]), obj["bitwidth"])
        case kind:
            return Name(kind, obj.get("value", kind))


def _calculation(name: str, obj: Mapping[str, Any], source: Source) -> Calculation:
    return Calculation(name, obj["algo"], tuple(_hashed(i) for i in obj["input"]), source)


def _checksum(obj: Mapping[str, Any]) -> Checksum:
    condition = obj.get("if_cond")
    return Checksum(
        name=obj["name"],
        calculation=obj["calculation"],
        target=FieldRef(*obj["target"]),
        verify=bool(obj.get("verify", True)),
        update=bool(obj.get("update", True)),
        condition=None if condition is None else _expr(condition),
        source=_source(obj),
    )


def _profile(obj: Mapping[str, Any]) -> ActionProfile:
    selector, source = obj.get("selector"), _source(obj)
    hashed = None if selector is None else _calculation(obj["name"], selector, source)
    return ActionProfile(obj["name"], obj.get("max_size", 0), hashed, source)


def read_program(data: bytes | str) -> Program:
    """Read the BMv2 JSON of a v1model program.

    Raises BadInputError when the text is not JSON, or not the JSON of a v1model program, and UnsupportedError
    for what p4c writes and nobody can run.
    """
    try:
        raw = json.loads(data)
        types = {t["name"]: _header_type(t) for t in raw["header_types"]}
        for h in raw["headers"]:
            if h["header_type"] in {u["name"] for u in raw.get("header_union_types", [])}:
                # p4c writes this for some unions, and BMv2 does not take it either.
                raise UnsupportedError(
                    f"header union {h['name']}, which p4c has written as a header,",
                    PurePath(raw.get("program", "")).name,
                )
        headers = {
            h["name"]: Header(h["name"], types[h["header_type"]], h["metadata"]) for h in raw["headers"]
        }
        by_id = {h["id"]: h["name"] for h in raw["headers"]}
        pipelines = {p["name"]: _pipeline(p) for p in raw["pipelines"]}
        actions = {
            a["id"]: Action(
                a["name"],
                a["id"],
                tuple(ActionParam(d["name"], d["bitwidth"]) for d in a["runtime_data"]),
                tuple(_primitive(p) for p in a["primitives"]),
                _source(a),
            )
            for a in raw["actions"]
        }
        return Program(
            name=raw.get("program", ""),
            headers=headers,
            stacks={
                s["name"]: HeaderStack(s["name"], tuple(by_id[i] for i in s["header_ids"]))
                for s in raw.get("header_stacks", [])
            },
            parser=_parser(raw["parsers"][0]),
            ingress=pipelines["ingress"],
            egress=pipelines["egress"],
            deparser=Deparser(
                tuple(raw["deparsers"][0]["order"]),
                tuple(_primitive(p) for p in raw["deparsers"][0].get("primitives", [])),
            ),
            actions=actions,
            counters={
                c["name"]: CounterArray(c["name"], c["id"], c.get("size", 0), c.get("binding"))
                for c in raw.get("counter_arrays", [])
            },
            registers={
                r["name"]: RegisterArray(r["name"], r["size"], r["bitwidth"], _source(r))
                for r in raw.get("register_arrays", [])
            },
            meters={m["name"]: _meter(m) for m in raw.get("meter_arrays", [])},
            value_sets={
                v["name"]: ValueSet(v["name"], v["compressed_bitwidth"], v.get("max_size", 0), _source(v))
                for v in raw.get("parse_vsets", [])
            },
            digests={
                d["id"]: DigestList(
                    d["name"], d["id"], tuple(FieldRef(*e["value"]) for e in d["elements"]), _source(d)
                )
                for d in raw.get("learn_lists", [])
            },
            field_lists={
                f["id"]: FieldList(
                    f["name"],
                    f["id"],
                    tuple(FieldRef(*e["value"]) for e in f["elements"] if e["type"] == "field"),
                    _source(f),
                )
                for f in raw.get("field_lists", [])
            },
            calculations={
                c["name"]: _calculation(c["name"], c, _source(c)) for c in raw.get("calculations", [])
            },
            profiles={o["name"]: _profile(o) for p in raw["pipelines"] for o in p.get("action_profiles", [])},
            checksums=tuple(_checksum(c) for c in raw.get("checksums", []) if c.get("type") == "generic"),
            errors=dict(raw.get("errors", [])),
            unread=_unread(raw),
            unions={
                u["name"]: HeaderUnion(u["name"], tuple(by_id[i] for i in u["header_ids"]))
                for u in raw.get("header_unions", [])
            },
            union_stacks=_union_stacks(raw),
            aliases={name: FieldRef(*ref) for name, ref in raw.get("field_aliases", [])},
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as exc:
        raise BadInputError(f"not the BMv2 JSON of a v1model program: {type(exc).__name__}: {exc}") from exc
