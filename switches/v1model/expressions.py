"""Expressions and statements of a v1model program, as they occur in the BMv2 JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """A place in the P4 source. If p4c gives no line, `line` is 0."""

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
    """A constant True or False."""

    value: bool


@dataclass(frozen=True)
class Param:
    """A parameter of the action in which the expression occurs, by its position."""

    index: int


@dataclass(frozen=True)
class Name:
    """An object's name. `kind` is header, header_stack, counter_array, register_array, calculation, ..."""

    kind: str
    name: str


@dataclass(frozen=True)
class StackField:
    """P4's `stack.last.field`: a field of the element that the parser extracted last."""

    stack: str
    field: str


@dataclass(frozen=True)
class UnionStackHeader:
    """A header in the next free element of a stack of unions: the target of an `extract` in the parser."""

    stack: str
    header: str


@dataclass(frozen=True)
class UnionStackField:
    """A field of a header in a stack of unions, in the element that the parser extracted last."""

    stack: str
    header: str
    field: str


@dataclass(frozen=True)
class Lookahead:
    """Bits that the parser reads but does not extract.

    These are `width` bits, which begin `offset` bits after the parser's position.
    """

    offset: int
    width: int


@dataclass(frozen=True)
class Text:
    """A string."""

    value: str


@dataclass(frozen=True)
class Vector:
    """A list of expressions, such as the arguments of a log message."""

    items: tuple[Expr, ...]


@dataclass(frozen=True)
class Op:
    """An operation. A unary operation has only `right`. The conditional `?` has all three operands."""

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
