"""The parser, the controls with their tables, and the deparser of a v1model program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mrclab.switches.v1model.expressions import NOWHERE, Expr, FieldRef, Primitive, Source


@dataclass(frozen=True)
class Transition:
    """A transition of a parser state; `kind` is default, hexstr or parse_vset, no next state means accept.

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
    """The action of a table on a miss."""

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
class Deparser:
    """The order in which valid headers go out."""

    order: tuple[str, ...]
    primitives: tuple[Primitive, ...]
