"""A whole v1model program, with its parser, controls, tables and deparser.

The eBPF compiler and the model of P4's semantics (`p4_model`) both take a `Program` as input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath

from mrclab.switches.v1model.declarations import (
    Action,
    ActionProfile,
    Calculation,
    Checksum,
    CounterArray,
    DigestList,
    Field,
    FieldList,
    Header,
    HeaderStack,
    HeaderUnion,
    MeterArray,
    RegisterArray,
    UnionStack,
    UnsupportedPart,
    ValueSet,
    Varbit,
)
from mrclab.switches.v1model.expressions import NOWHERE, Expr, FieldRef, Name, Primitive, Source


@dataclass(frozen=True)
class Transition:
    """A transition of a parser state; `kind` is default, hexstr or parse_vset.

    If `next` is None, the parser ends. A transition of kind parse_vset is taken if the key is
    in the value set `value_set`.
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
    """A field of a table's key; `match` is exact, lpm, ternary, range, optional or valid."""

    match: str
    target: FieldRef
    mask: int | None
    name: str


@dataclass(frozen=True)
class ConstMatch:
    """One field of the key of a constant entry, which is written in the P4 program."""

    match: str
    key: int
    mask: int = 0
    prefix: int = 0
    end: int = 0


@dataclass(frozen=True)
class ConstEntry:
    """A constant entry, which is written in the P4 program. The lowest `priority` number wins."""

    key: tuple[ConstMatch, ...]
    action_id: int
    data: tuple[int, ...]
    priority: int


@dataclass(frozen=True)
class DefaultEntry:
    """The default action of a table: it runs if no entry matches."""

    action_id: int
    data: tuple[int, ...]
    const: bool


@dataclass(frozen=True)
class Table:
    """A match-action table. `next_by_action` maps an action, `__HIT__` or `__MISS__` to the next node."""

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
    """An `if` in a control: the expression, and the next node for true and for false."""

    name: str
    expr: Expr
    true_next: str | None
    false_next: str | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class ActionCall:
    """A call of an action outside of a table."""

    name: str
    action_id: int
    next: str | None
    source: Source = NOWHERE


Node = Table | Conditional | ActionCall


@dataclass(frozen=True)
class Pipeline:
    """A control (ingress or egress): its first node (None if the control is empty) and its nodes by name."""

    name: str
    start: str | None
    nodes: Mapping[str, Node]


@dataclass(frozen=True)
class Deparser:
    """The deparser: the order in which it writes valid headers, and its other statements."""

    order: tuple[str, ...]
    primitives: tuple[Primitive, ...]


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
    unsupported: tuple[UnsupportedPart, ...] = ()
    unions: Mapping[str, HeaderUnion] = field(default_factory=dict)
    union_stacks: Mapping[str, UnionStack] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The name of the P4 file, for errors about a part whose line is unknown."""
        return PurePath(self.name).name

    def elements(self, name: str) -> tuple[str, ...]:
        """Return the headers of a header stack, of a union, or of all elements of a stack of unions."""
        if name in self.stacks:
            return self.stacks[name].members
        if name in self.unions:
            return self.unions[name].members
        return tuple(h for u in self.union_stacks[name].members for h in self.unions[u].members)

    def named(self, name: Name) -> tuple[str, ...]:
        """Return the headers of a named object: a header, a union, or a stack of headers or unions."""
        return (name.name,) if name.name in self.headers else self.elements(name.name)

    def depth(self, stack: str) -> int:
        """Return the number of elements of a stack of headers or unions."""
        return len((self.stacks.get(stack) or self.union_stacks[stack]).members)

    def element(self, stack: str, index: int, header: str | None = None) -> str:
        """Return an element of a header stack. For a stack of unions, return a header of the element."""
        if header is None:
            return self.stacks[stack].members[index]
        unions = self.union_stacks[stack]
        return self.unions[unions.members[index]].members[unions.headers.index(header)]

    def exclusive_with(self, header: str) -> tuple[str, ...]:
        """Return the other headers of a header's union, which become invalid if this header becomes valid."""
        return self._exclusive.get(header, ())

    @cached_property
    def _exclusive(self) -> dict[str, tuple[str, ...]]:
        return {h: tuple(o for o in u.members if o != h) for u in self.unions.values() for h in u.members}

    def varbit(self, ref: FieldRef) -> Varbit | None:
        """Return the declaration of a field of variable length. Return None for a field of fixed width."""
        kind = self.headers[ref.header].type
        return kind.varbit if kind.varbit is not None and kind.varbit.name == ref.field else None

    def tables(self) -> list[Table]:
        """Return every table of both controls, in the order of the JSON."""
        return [n for p in (self.ingress, self.egress) for n in p.nodes.values() if isinstance(n, Table)]

    def field(self, ref: FieldRef) -> Field:
        """Return the declaration of a field; `$valid$` is one bit wide."""
        if ref.field == "$valid$":
            return Field("$valid$", 1, False, 0)
        return self.headers[ref.header].field_by_name[ref.field]
