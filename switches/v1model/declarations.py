"""Headers, actions and externs that a v1model program declares, and the jumps inside an action.

p4c writes jumps for an `if` in an action's body.
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
    """A field of variable length, at most `size` bytes. It starts `offset` bits after the header starts."""

    name: str
    offset: int
    size: int


@dataclass(frozen=True)
class HeaderType:
    """A header or struct type. The offsets of its fields do not count the length of the `varbit` field."""

    name: str
    fields: tuple[Field, ...]
    varbit: Varbit | None = None

    @property
    def bits(self) -> int:
        """The total width of all fields except the `varbit` field, in bits."""
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
        """The fields of fixed width, by name."""
        return {f.name: f for f in self.type.fields}


@dataclass(frozen=True)
class HeaderStack:
    """A header stack: the names of its elements, in order."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class HeaderUnion:
    """A header union: the names of its headers. At most one of them is valid at a time."""

    name: str
    members: tuple[str, ...]


@dataclass(frozen=True)
class UnionStack:
    """A stack of header unions: the names of its unions, and the header names within a union, in order."""

    name: str
    members: tuple[str, ...]
    headers: tuple[str, ...]


@dataclass(frozen=True)
class ActionParam:
    """A parameter of an action; `width` is in bits."""

    name: str
    width: int


@dataclass(frozen=True)
class Action:
    """An action. Two actions of a program may have the same name, but not the same id."""

    name: str
    id: int
    params: tuple[ActionParam, ...]
    primitives: tuple[Primitive, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class CounterArray:
    """A counter array. A direct counter names its table, and has one cell for each entry of the table."""

    name: str
    id: int
    size: int
    table: str | None


@dataclass(frozen=True)
class MeterArray:
    """A meter array. A direct meter names its table, and the field that gets the colour."""

    name: str
    size: int
    packets: bool  # True: the meter counts packets; False: bytes
    rates: int
    table: str | None = None
    result: FieldRef | None = None
    source: Source = NOWHERE


@dataclass(frozen=True)
class ValueSet:
    """A parser value set: `bits` is the width of a member, in which each field takes whole bytes.

    `size` is the maximum number of members.
    """

    name: str
    bits: int
    size: int
    source: Source = NOWHERE


@dataclass(frozen=True)
class DigestList:
    """A digest: the fields of each message that the switch sends to the controller, in order."""

    name: str
    id: int
    fields: tuple[FieldRef, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class FieldList:
    """Metadata fields that a cloned, resubmitted or recirculated frame keeps."""

    name: str
    id: int
    fields: tuple[FieldRef, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class RegisterArray:
    """A register array: `size` cells of `width` bits each."""

    name: str
    size: int
    width: int
    source: Source = NOWHERE


@dataclass(frozen=True)
class Calculation:
    """A hash: its algorithm by BMv2's name, and its input.

    The input is a string of bits, most significant first: fields and constants one after another. Zeros fill
    the last byte. A field of an invalid header is left out. `Bits` is a constant of a given width. A `Name`
    of kind `payload` stands for the part of the frame that was not parsed; it is always the last item.
    """

    name: str
    algorithm: str
    input: tuple[FieldRef | Bits | Name, ...]
    source: Source = NOWHERE


@dataclass(frozen=True)
class Checksum:
    """A checksum: a field that should equal the result of a calculation, if `condition` is true.

    If `verify` is true, and field and result differ after the parser, the switch sets checksum_error. If
    `update` is true, the switch writes the result to the field before the deparser.
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
    """An action profile. If it has a `selector`, it is an action selector: a hash chooses the member."""

    name: str
    size: int
    selector: Calculation | None
    source: Source = NOWHERE


@dataclass(frozen=True)
class UnsupportedPart:
    """A part of the program that no target supports. Its name and place are kept for the error message."""

    what: str
    name: str
    source: Source = NOWHERE


JUMPS = ("_jump", "_jump_if_zero")


def jump_target(primitive: Primitive) -> int:
    """Return the index of the statement that a jump leads to. Raise UnsupportedError for a computed jump."""
    last = primitive.args[-1]
    if not isinstance(last, Const):
        raise UnsupportedError("a computed jump", str(primitive.source))
    return last.value


def loops(action: Action) -> bool:
    """Return True if an action has a loop: a jump to an earlier statement or to itself."""
    jumps = [(i, p) for i, p in enumerate(action.primitives) if p.op in JUMPS]
    return any(jump_target(p) <= i for i, p in jumps)
