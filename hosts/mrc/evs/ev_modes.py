"""Sources of entropy values: formats, fields and the three modes of the control API, as pure functions.

* AUTO: the NIC invents them. Right for fabrics that hash (ECMP), where any value is a path.
* EXPLICIT: the host lists (EV, port) entries; an entry may be there several times.
* GENERATED: the NIC counts through all values of the fields that the host describes. Right if an EV's bits
  are the choices at each hop: structured EVs, whose fields switches read, and SRv6 [P1 §2.3].

An EV is a compact number. A format's fields say how it becomes the value in a packet, of 16, 32, 128 or 256
bits: `expand` [API, mrc_ctl.h and its example program]. Ports of entries are counted from 1, as the API does;
the core's are counted from 0.
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
    """Who makes the EVs [API]."""

    AUTO = "auto"
    EXPLICIT = "explicit"
    GENERATED = "generated"


class EvFormat(Enum):
    """The place of an EV's value in a packet [API]; the number is its bits."""

    UDP = 16
    """The UDP source port alone."""
    STEV = 32
    """Flow label and UDP source port: a structured EV."""
    SRV6 = 128
    """The outer destination: a container of uSIDs."""
    SRV6_SRH = 256
    """The outer destination and one segment of an SRH."""


@dataclass(frozen=True, slots=True)
class EvField:
    """One field of a value [API]: `init` with the bits of `mask` overwritten by bits of the EV.

    `min` and `max` bound the number that those bits make, not the field. A fixed field has `init` alone.
    """

    width: int
    init: int = 0
    min: int = 0
    max: int = 0
    mask: int = 0
    denied: frozenset[int] = frozenset()
    """Numbers left out when EVs are generated, as the links that a switch does not have."""

    def __post_init__(self) -> None:
        if not 1 <= self.width <= _FIELD_BITS:
            raise ValueError(f"a field has 1 to {_FIELD_BITS} bits, not {self.width}")
        if not 0 <= self.init < 1 << self.width or not 0 <= self.mask < 1 << self.width:
            raise ValueError(f"init and mask must fit a field's width: {self}")
        if not 0 <= self.min <= self.max < 1 << self.bits:
            raise ValueError(f"a field needs 0 <= min <= max, in as many bits as its mask has: {self}")

    @classmethod
    def counter(cls, width: int, last: int | None = None, denied: frozenset[int] = frozenset()) -> EvField:
        """Return a field that is a number of the EV as a whole, up to `last` (all ones)."""
        ones = (1 << width) - 1
        return cls(width, max=ones if last is None else last, mask=ones, denied=denied)

    @property
    def bits(self) -> int:
        """How many bits of the EV it takes."""
        return self.mask.bit_count()

    def value(self, number: int) -> int:
        """Return the field with this number in its mask's bits, the highest in the highest."""
        value, left = self.init & ~self.mask, self.bits
        for at in reversed(range(self.width)):
            if self.mask >> at & 1:
                left -= 1
                value |= (number >> left & 1) << at
        return value

    def numbers(self) -> list[int]:
        """Return the numbers that it may hold, in order."""
        return [number for number in range(self.min, self.max + 1) if number not in self.denied]


def expand(ev: int, fields: Sequence[EvField], widths: Sequence[int] | None = None) -> int:
    """Return the value of an EV: its fields, the first one most significant.

    Fields take bits of the EV from the most significant one on. `widths` are the format's: each field stands
    right-aligned in one of them, and the remaining ones are 0. None: as wide as the fields. Raise ValueError
    on fields that do not fit, and on an EV with more bits than the fields take.
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
    """Return the widths of a format, which fields have to fit. Raise ValueError if they do not."""
    within = [field.width for field in fields] if widths is None else widths
    if len(fields) > len(within):
        raise ValueError(f"a format of {len(within)} fields has no room for {len(fields)} fields")
    for field, width in zip(fields, within, strict=False):
        if field.width > width:
            raise ValueError(f"a field of {field.width} bits does not fit one of {width} bits in the format")
    return within


def generate(fields: Sequence[EvField]) -> Iterator[int]:
    """Return all EVs of these fields, the last field changing fastest."""
    for numbers in itertools.product(*(field.numbers() for field in fields)):
        ev = 0
        for field, number in zip(fields, numbers, strict=True):
            ev = ev << field.bits | number
        yield ev


def invent(count: int, rng: random.Random, bits: int = EV_BITS) -> list[int]:
    """Return that many different random EVs."""
    if not 0 <= count <= 1 << bits:
        raise ValueError(f"there are not {count} different EVs of {bits} bits")
    return rng.sample(range(1 << bits), count)


@dataclass(frozen=True, slots=True)
class EvEntry:
    """An EV and the port that it is for, counted from 1 [API]; both 0 for an entry not yet populated."""

    ev: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        if self.ev < 0 or self.port < 0 or (self.ev and not self.port):
            raise ValueError(f"an entry has an EV and a port from 1 on, or neither: {self}")

    @property
    def populated(self) -> bool:
        """It names an EV."""
        return self.port > 0


@dataclass(frozen=True, slots=True)
class EvRecipe:
    """How the EVs of one port are made."""

    mode: EvMode
    count: int = 0
    """AUTO: how many. GENERATED: at most so many; 0 is all."""
    entries: tuple[EvEntry, ...] = ()
    """EXPLICIT."""
    fields: tuple[EvField, ...] = ()
    """How an EV becomes a value; none: it is one already. GENERATED needs them."""
    widths: tuple[int, ...] | None = None
    """Of the format's fields, bits; None: those of `fields`."""
    bits: int = EV_BITS
    """AUTO: of an EV."""

    def evs(self, port: int, rng: random.Random) -> list[int]:
        """Return the EVs for a port, counted from 0; EXPLICIT ones as often as they are listed."""
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
    """Return a port's paths; `outer_dst` is the fixed rule from an EV to a uSID container [P1 §2.3].

    None: the value is the container, as in the format of 128 bits, and the packet carries the EV.
    """

    def container(ev: int) -> bytes:
        return recipe.value(ev).to_bytes(EvFormat.SRV6.value // 8, "big")

    rule = outer_dst or container
    return tuple(
        Path(ev if outer_dst is None else recipe.value(ev), rule(ev)) for ev in recipe.evs(port, rng)
    )
