"""Headers, actions and externs that a v1model program declares.

Also the jumps inside an action: p4c writes them for `if` in an action's body.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mrclab.linux.errors import UnsupportedError
from mrclab.switches.v1model.expressions import NOWHERE, Const, Expr, FieldRef, Name, Primitive, Source


@dataclass(frozen=True)
class Field:
    """A header field; `offset` is its distance in bits from the first bit of its header."""

    name: str
    width: int
    signed: bool
    offset: int


@dataclass(frozen=True)
class Varbit:
    """A field of variable length, `offset` bits into its header, of at most `size` bytes."""

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
        """Return the name of a field by its position in the declaration."""
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
    """A digest's messages to the controller: the fields of each, in order."""

    name: str
    id: int
    fields: tuple[FieldRef, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class FieldList:
    """The fields that are preserved for a clone, or for a frame that enters the switch again."""

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
    """A hash: its algorithm by BMv2's name, and its input.

    The input is a string of bits, most significant first: fields and constants in a row, the last byte filled
    with zeros. A field of a header that is not valid adds nothing. `Bits` is a constant of given width. A
    Name of kind `payload` stands for the part of the frame that was not parsed; it comes last.
    """

    name: str
    algorithm: str
    input: tuple[FieldRef | Bits | Name, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class Checksum:
    """A checksum: a field that must equal the result of a calculation where its condition is true.

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
    """An action profile; one with a `selector` is an action selector, which chooses a member by a hash."""

    name: str
    size: int
    selector: Calculation | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class UnsupportedPart:
    """A part of the program this reader keeps only by name, so that a target can refuse it."""

    what: str
    name: str
    source: Source = NOWHERE


JUMPS = ("_jump", "_jump_if_zero")


def jump_target(primitive: Primitive) -> int:
    """Return the index of the statement that a jump leads to. Raises UnsupportedError for a computed one."""
    last = primitive.args[-1]
    if not isinstance(last, Const):
        raise UnsupportedError("a computed jump", str(primitive.source))
    return last.value


def loops(action: Action) -> bool:
    """Return True if an action jumps back."""
    jumps = [(i, p) for i, p in enumerate(action.primitives) if p.op in JUMPS]
    return any(jump_target(p) <= i for i, p in jumps)
