"""Sources of entropy values: formats, fields and the three modes of the control API, as pure functions.

* AUTO: the NIC chooses random EVs. This fits fabrics that hash (ECMP), where every value leads to a path.
* EXPLICIT: the host lists (EV, port) entries. The list may contain an entry several times.
* GENERATED: the NIC counts through all values of the fields that the host describes. This fits EVs whose bits
  are the choices at each hop: structured EVs, whose fields switches read, and SRv6 [P1 §2.3].

An EV is a short number. Its value in a packet has 16, 32, 128 or 256 bits. The fields of a format define how
the EV becomes this value: see `expand` [API, mrc_ctl.h and its example program]. The API and the entries
count ports from 1. The rest of the core counts ports from 0.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from mrclab.hosts.rdma.paths import Path

EV_BITS = 32
_FIELD_BITS = 32


class EvMode(Enum):
    """How EVs are made [API]."""

    AUTO = "auto"
    EXPLICIT = "explicit"
    GENERATED = "generated"


class EvFormat(Enum):
    """The place of an EV's value in a packet [API]. A member's number is the length of the value in bits."""

    UDP = 16
    """The UDP source port alone."""
    STEV = 32
    """Flow label and UDP source port: a structured EV."""
    SRV6 = 128
    """The outer destination address: a container of uSIDs."""
    SRV6_SRH = 256
    """The outer destination address and one segment of an SRH."""


@dataclass(frozen=True, slots=True)
class EvField:
    """One field of an EV's value in a packet [API]. Bits in `mask` come from the EV, all others from `init`.

    `min` and `max` limit the number that these EV bits form. In a fixed field the mask is 0.
    """

    width: int
    init: int = 0
    min: int = 0
    max: int = 0
    mask: int = 0
    denied: frozenset[int] = frozenset()
    """Numbers that generated EVs do not use, such as links that a switch does not have."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= _FIELD_BITS:
            raise ValueError(f"a field has 1 to {_FIELD_BITS} bits, not {self.width}")
        if not 0 <= self.init < 1 << self.width or not 0 <= self.mask < 1 << self.width:
            raise ValueError(f"init and mask must fit a field's width: {self}")
        if not 0 <= self.min <= self.max < 1 << self.bits:
            raise ValueError(f"a field needs 0 <= min <= max, in as many bits as its mask has: {self}")

    @classmethod
    def counter(cls, width: int, last: int | None = None, denied: frozenset[int] = frozenset()) -> EvField:
        """Return a field that takes all its bits from the EV. The bits form a number of at most `last`."""
        ones = (1 << width) - 1
        return cls(width, max=ones if last is None else last, mask=ones, denied=denied)

    @property
    def bits(self) -> int:
        """Number of bits that the field takes from the EV."""
        return self.mask.bit_count()

    def value(self, number: int) -> int:
        """Return the field with the bits of `number` in the places that the mask marks, in the same order."""
        value, left = self.init & ~self.mask, self.bits
        for at in reversed(range(self.width)):
            if self.mask >> at & 1:
                left -= 1
                value |= (number >> left & 1) << at
        return value

    def numbers(self) -> list[int]:
        """Return the numbers that the field may hold, in ascending order."""
        return [number for number in range(self.min, self.max + 1) if number not in self.denied]


def expand(ev: int, fields: Sequence[EvField], widths: Sequence[int] | None = None) -> int:
    """Return an EV's value in a packet.

    The fields share the EV's bits, from the most significant bit on. In the value, each field has a place, in
    the same order. `widths` are the lengths of the places in bits; None means the lengths of `fields`. Each
    field is right-aligned in its place. A place without a field contains 0. Raise ValueError if a field does
    not fit, or if the EV has more bits than the fields take.
    """
    within = check_fields(fields, widths)
    left = sum(field.bits for field in fields)
    if ev < 0 or ev >> left:
        raise ValueError(f"EV {ev:#x} has more than the {left} bits that the fields take")
    value = 0
    for field, width in itertools.zip_longest(fields, within):
        value <<= width
        if field is not None:
            left -= field.bits
            value |= field.value(ev >> left & (1 << field.bits) - 1)
    return value


def check_fields(fields: Sequence[EvField], widths: Sequence[int] | None = None) -> Sequence[int]:
    """Return the widths of a format's fields. Raise ValueError if `fields` do not fit into these widths."""
    within = [field.width for field in fields] if widths is None else widths
    if len(fields) > len(within):
        raise ValueError(f"a format of {len(within)} fields has no room for {len(fields)} fields")
    for field, width in zip(fields, within, strict=False):
        if field.width > width:
            raise ValueError(f"a field of {field.width} bits does not fit one of {width} bits in the format")
    return within


def generate(fields: Sequence[EvField]) -> Iterator[int]:
    """Return all EVs of these fields; the last field changes fastest."""
    for numbers in itertools.product(*(field.numbers() for field in fields)):
        ev = 0
        for field, number in zip(fields, numbers, strict=True):
            ev = ev << field.bits | number
        yield ev


def invent(count: int, rng: random.Random, bits: int = EV_BITS) -> list[int]:
    """Return `count` different random EVs."""
    if not 0 <= count <= 1 << bits:
        raise ValueError(f"there are not {count} different EVs of {bits} bits")
    return rng.sample(range(1 << bits), count)


@dataclass(frozen=True, slots=True)
class EvEntry:
    """An EV and its port, counted from 1 [API]; both are 0 if the entry is not populated yet."""

    ev: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        if self.ev < 0 or self.port < 0 or (self.ev and not self.port):
            raise ValueError(f"an entry has an EV and a port from 1 on, or neither: {self}")

    @property
    def populated(self) -> bool:
        """True if the entry has an EV."""
        return self.port > 0


@dataclass(frozen=True, slots=True)
class EvRecipe:
    """How the EVs of one port are made."""

    mode: EvMode
    count: int = 0
    """AUTO: the number of EVs. GENERATED: the largest number of EVs; 0: all."""
    entries: tuple[EvEntry, ...] = ()
    """EXPLICIT: the list of EVs."""
    fields: tuple[EvField, ...] = ()
    """How an EV becomes the value in a packet; empty: the EV is the value. GENERATED needs fields."""
    widths: tuple[int, ...] | None = None
    """Widths of the format's fields, bits; None: the widths of `fields`."""
    bits: int = EV_BITS
    """AUTO: number of bits of an EV."""

    def evs(self, port: int, rng: random.Random) -> list[int]:
        """Return the EVs for a port (the first port is 0). An EXPLICIT EV may occur several times."""
        if self.mode is EvMode.AUTO:
            return invent(self.count, rng, self.bits)
        if self.mode is EvMode.EXPLICIT:
            return [entry.ev for entry in self.entries if entry.populated and entry.port == port + 1]
        return list(itertools.islice(generate(self.fields), self.count or None))

    def value(self, ev: int) -> int:
        """Return the value of an EV in a packet."""
        return expand(ev, self.fields, self.widths) if self.fields else ev

    def values(self, port: int, rng: random.Random) -> list[int]:
        """Return the values for a port, in the order of `evs`."""
        return [self.value(ev) for ev in self.evs(port, rng)]


def make_paths(
    recipe: EvRecipe, port: int, rng: random.Random, outer_dst: Callable[[int], bytes | None] | None = None
) -> tuple[Path, ...]:
    """Return the paths of a port. `outer_dst` returns the uSID container of an EV [P1 §2.3].

    Without `outer_dst`, the EV's value (128 bits) is the container.
    """

    def container(ev: int) -> bytes:
        return recipe.value(ev).to_bytes(EvFormat.SRV6.value // 8, "big")

    rule = outer_dst or container
    return tuple(
        Path(ev if outer_dst is None else recipe.value(ev), rule(ev)) for ev in recipe.evs(port, rng)
    )
