"""Faults as values: the one type of a fault, the table of kinds, and whether a fault makes sense. Pure.

How a kind is made is a mechanism's matter (``mrclab.testbed.faults``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from typing import Literal

from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric

MIN_PERIOD_NS = 10_000_000

Direction = Literal["both", "up", "down"]
"""Which way over a link: ``up`` is away from the hosts."""
DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")


class Place(Enum):
    """What a fault can break, and how it is written."""

    LINK = "link, such as p0-t0-0:p0-t1-1"
    NIC_PORT = "NIC port, such as h0-eth1"
    SWITCH = "switch, such as p0-t1-0"
    PLANE = "plane, such as p0"


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to make. Fields that a kind does not take stay at their defaults.

    ``direction`` is that of the frames it takes: ``up`` is away from the hosts. ``ratio`` is above 0 and at
    most 1: the share of frames lost or corrupted (kept to 2^-32), or of the link's rate that is left.
    ``delay_ns`` is added each way. ``period_ns`` and ``down_ns`` are those of a flap, which is of the kind
    ``of``; a reboot takes ``down_ns``.
    """

    kind: str
    where: str
    direction: Direction = "both"
    ratio: float = 1.0
    delay_ns: int = 1_000_000
    period_ns: int = 1_000_000_000
    down_ns: int = 500_000_000
    of: str = "blackhole"


@dataclass(frozen=True, slots=True)
class Moment:
    """When something took effect: between two stamps of CLOCK_MONOTONIC, and who read the clock."""

    t_before_ns: int
    t_after_ns: int
    stamped_by: Literal["switch", "controller", "testbed"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of kinds: what it breaks, what it does, and the fields that it ``takes``.

    ``lets_through`` is True where frames come through the place by the kind's nature: changed, late, or
    because the place works again by itself while the fault lasts.
    """

    name: str
    place: Place
    does: str
    takes: tuple[str, ...] = ()
    lets_through: bool = False


def _kinds(*kinds: Kind) -> Mapping[str, Kind]:
    return {kind.name: kind for kind in kinds}


KINDS = _kinds(
    Kind(
        "blackhole",
        Place.LINK,
        "drops every frame; carrier stays up, so no end notices",
        ("direction",),
    ),
    Kind(
        "loss",
        Place.LINK,
        "drops a share of the frames, at random",
        ("direction", "ratio"),
    ),
    Kind(
        "corruption",
        Place.LINK,
        "flips a bit of a share of the frames",
        ("direction", "ratio"),
        lets_through=True,
    ),
    Kind(
        "rate",
        Place.LINK,
        "leaves a share of the link's rate and loses what is more",
        ("direction", "ratio"),
        lets_through=True,
    ),
    Kind(
        "carrier",
        Place.LINK,
        "takes the carrier away, as a pulled cable does",
    ),
    Kind(
        "port-down",
        Place.NIC_PORT,
        "takes a port of a NIC down, as its own host would",
    ),
    Kind(
        "delay",
        Place.LINK,
        "makes the link longer, each way",
        ("delay_ns",),
        lets_through=True,
    ),
    Kind(
        "flap",
        Place.LINK,
        "breaks the link for a while in every period",
        ("direction", "period_ns", "down_ns", "of"),
        lets_through=True,
    ),
    Kind(
        "switch-death",
        Place.SWITCH,
        "ends a switch; undoing it boots it again, empty, to be programmed anew",
    ),
    Kind(
        "switch-reboot",
        Place.SWITCH,
        "ends a switch, which boots again by itself",
        ("down_ns",),
        lets_through=True,
    ),
    Kind(
        "plane-death",
        Place.PLANE,
        "ends every switch of a plane at once",
    ),
)
SIMULATED_KINDS = _kinds(
    Kind(
        "pause-storm",
        Place.NIC_PORT,
        "has a NIC pause what sends to it, without end; on links with credits it gives none back",
        lets_through=True,
    ),
)
"""Kinds that only a simulated fabric with lossless links can make."""
ALL_KINDS = {**KINDS, **SIMULATED_KINDS}
FLAP_OF = ("blackhole", "carrier")
_OPTIONS = tuple(f.name for f in fields(Fault) if f.name not in ("kind", "where"))
_DEFAULTS = Fault("", "")


def kind_named(name: str) -> Kind:
    """Return the kind of that name. Raise InputError."""
    if name not in ALL_KINDS:
        raise InputError(f"no fault kind '{name}': choose {', '.join(ALL_KINDS)}")
    return ALL_KINDS[name]


def checked(fabric: Fabric, fault: Fault) -> Fault:
    """Return the fault with its place as the fabric writes it.

    Raise InputError on a fault that makes no sense: one line that says what to write instead.
    """
    kind = kind_named(fault.kind)
    for option in _OPTIONS:
        if option not in kind.takes and getattr(fault, option) != getattr(_DEFAULTS, option):
            takes = ", ".join(flag(name) for name in kind.takes) or "no options"
            raise InputError(f"{kind.name} has no use for {flag(option)}: it takes {takes}")
    if fault.direction not in DIRECTIONS:
        raise InputError(f"a direction is both, up or down, not '{fault.direction}'")
    if not 0 < fault.ratio <= 1:
        raise InputError(f"a ratio is above 0 and at most 1, not {fault.ratio}")
    if "delay_ns" in kind.takes and fault.delay_ns <= 0:
        raise InputError("a delay is longer than nothing")
    if "down_ns" in kind.takes and fault.down_ns <= 0:
        raise InputError("the time down is longer than nothing")
    if kind.name == "flap":
        _check_flap(fault)
    where = _place(fabric, kind.place, fault.where)
    if where is None:
        raise InputError(
            f"no {kind.place.value.split(',')[0]} '{fault.where}' in {fabric.name}: give a {kind.place.value}"
        )
    return Fault(**{**{name: getattr(fault, name) for name in _OPTIONS}, "kind": kind.name, "where": where})


def _check_flap(fault: Fault) -> None:
    if fault.of not in FLAP_OF:
        raise InputError(f"a flap is of {' or '.join(FLAP_OF)}, not '{fault.of}'")
    if fault.of == "carrier" and fault.direction != "both":
        raise InputError("carrier is lost both ways: no direction")
    if fault.period_ns < MIN_PERIOD_NS or fault.down_ns >= fault.period_ns:
        raise InputError("a flap's period is 10 ms or longer, and longer than the time down in it")


def flag(option: str) -> str:
    """Return the command-line option of a field of a fault."""
    return "--" + option.removesuffix("_ns")


def _place(fabric: Fabric, place: Place, where: str) -> str | None:
    if place is Place.LINK:
        a, _, b = where.partition(":")
        return fabric.link(a, b).name if fabric.has_link(a, b) else None
    if place is Place.NIC_PORT:
        return where if any(where == port.ifname for host in fabric.hosts for port in host.ports) else None
    if place is Place.SWITCH:
        return where if any(where == switch.name for switch in fabric.switches) else None
    return where if where in {f"p{plane}" for plane in range(fabric.planes)} else None


def switches_at(fabric: Fabric, where: str) -> tuple[str, ...]:
    """Return the switches that a place stands for: itself, or all of a plane."""
    return tuple(s.name for s in fabric.switches if where in (s.name, f"p{s.plane}"))
