"""Expressions and statements of a v1model program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A place in the P4 source; line 0 if p4c gives none."""

    filename: str = ""
    line: int = 0

    def __str__(self) -> str:
        return f"{self.filename}:{self.line}" if self.line else self.filename


NOWHERE = Source()


# Expressions have no width: BMv2 computes with integers of any size, and truncates a result to the width of
# the field that it is stored in.


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
