"""A whole v1model program, as both targets and the model of its semantics read it."""

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
from mrclab.switches.v1model.expressions import FieldRef, Name
from mrclab.switches.v1model.pipeline import Deparser, Parser, Pipeline, Table


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
        """The name of the P4 file, for parts without a line."""
        return PurePath(self.name).name

    def elements(self, name: str) -> tuple[str, ...]:
        """Return the headers of a header stack, of a union, or of all elements of a stack of unions."""
        if name in self.stacks:
            return self.stacks[name].members
        if name in self.unions:
            return self.unions[name].members
        return tuple(h for u in self.union_stacks[name].members for h in self.unions[u].members)

    def named(self, name: Name) -> tuple[str, ...]:
        """Return the headers that a name of a header, a union or a stack of either stands for."""
        return (name.name,) if name.name in self.headers else self.elements(name.name)

    def depth(self, stack: str) -> int:
        """Return how many elements a stack of headers or unions has."""
        return len((self.stacks.get(stack) or self.union_stacks[stack]).members)

    def element(self, stack: str, index: int, header: str | None = None) -> str:
        """Return an element of a stack of headers, or the header of this name in one of unions."""
        if header is None:
            return self.stacks[stack].members[index]
        unions = self.union_stacks[stack]
        return self.unions[unions.members[index]].members[unions.headers.index(header)]

    def exclusive_with(self, header: str) -> tuple[str, ...]:
        """Return the headers that become invalid when this one becomes valid."""
        return self._exclusive.get(header, ())

    @cached_property
    def _exclusive(self) -> dict[str, tuple[str, ...]]:
        return {h: tuple(o for o in u.members if o != h) for u in self.unions.values() for h in u.members}

    def varbit(self, ref: FieldRef) -> Varbit | None:
        """Return the declaration of a field of variable length, None for any other."""
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
