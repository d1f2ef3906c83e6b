"""Where entropy values come from: the three modes of the control API, as pure functions.

`mrclab.hosts.nic.routes` makes the EVs of ECMP fabrics with AUTO, and structured EVs with GENERATED. With
SRv6 paths come ready-made from the topology, and EXPLICIT is for tests.

* AUTO: the NIC invents them. Right for fabrics that hash (ECMP), where any value is a path.
* EXPLICIT: the host lists (value, port) entries.
* GENERATED: the host describes fields, and the NIC counts through all their combinations. Right where an EV's
  bits are the choices at each hop: structured EVs, whose fields switches read, and SRv6 [P1 §2.3].

Ports are the core's own numbers, from 0; the control API counts them from 1.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from enum import Enum

from mrclab.hosts.rdma.paths import Path

EV_BITS = 32


class EvMode(Enum):
    """Who makes the EVs [API]."""

    AUTO = "auto"
    EXPLICIT = "explicit"
    GENERATED = "generated"


@dataclass(frozen=True, slots=True)
class EvField:
    """One field of generated EVs [API]: a counter of `width` bits from `min` to `max`, starting at `init`.

    Bits outside `mask` keep their value in `init`; the sources name a mask and leave its meaning open, and
    this is the one that lets a host hold some bits of a field fixed. `denied` values are left out, as the
    links that a switch does not have.
    """

    width: int
    init: int = 0
    min: int = 0
    max: int | None = None
    """None is all ones."""
    mask: int | None = None
    """None is all ones."""
    denied: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        if not 1 <= self.width <= EV_BITS:
            raise ValueError(f"a field has 1 to {EV_BITS} bits, not {self.width}")
        if not 0 <= self.min <= self.init <= self.last <= (1 << self.width) - 1:
            raise ValueError(f"field needs 0 <= min <= init <= max < 2^width: {self}")

    @property
    def last(self) -> int:
        """The largest value."""
        return (1 << self.width) - 1 if self.max is None else self.max

    def values(self) -> list[int]:
        """Return the values in order: from `init` up to the largest, then from `min` on."""
        fixed = ~((1 << self.width) - 1 if self.mask is None else self.mask)
        order = itertools.chain(range(self.init, self.last + 1), range(self.min, self.init))
        return [v for v in order if (v ^ self.init) & fixed == 0 and v not in self.denied]


def expand(fields: Collection[EvField], bits: int = EV_BITS) -> Iterator[int]:
    """Return all EVs of these fields: the first takes the most significant bits, the last changes fastest.

    Bits below the last field are 0.
    """
    used = sum(field.width for field in fields)
    if used > bits:
        raise ValueError(f"fields have {used} bits, an EV only {bits}")
    for values in itertools.product(*(field.values() for field in fields)):
        ev = 0
        for field, value in zip(fields, values, strict=True):
            ev = ev << field.width | value
        yield ev << (bits - used)


def invent(count: int, rng: random.Random, bits: int = EV_BITS) -> list[int]:
    """Return that many different random EVs."""
    if not 0 <= count <= 1 << bits:
        raise ValueError(f"there are not {count} different EVs of {bits} bits")
    return rng.sample(range(1 << bits), count)


@dataclass(frozen=True, slots=True)
class EvProfile:
    """How the EVs of one port are made."""

    mode: EvMode
    count: int = 0
    """AUTO: how many. GENERATED: at most so many; 0 is all."""
    entries: tuple[tuple[int, int], ...] = ()
    """EXPLICIT: (value, port)."""
    fields: tuple[EvField, ...] = ()
    """GENERATED."""
    bits: int = EV_BITS

    def evs(self, port: int, rng: random.Random) -> list[int]:
        """Return the EVs for a port, each once."""
        if self.mode is EvMode.AUTO:
            return invent(self.count, rng, self.bits)
        if self.mode is EvMode.EXPLICIT:
            return list(dict.fromkeys(value for value, on in self.entries if on == port))
        return list(itertools.islice(expand(self.fields, self.bits), self.count or None))


def make_paths(
    profile: EvProfile, port: int, rng: random.Random, outer_dst: Callable[[int], bytes | None]
) -> tuple[Path, ...]:
    """Return a port's paths; `outer_dst` is the fixed rule from an EV to a uSID container [P1 §2.3]."""
    return tuple(Path(ev, outer_dst(ev)) for ev in profile.evs(port, rng))
