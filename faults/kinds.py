"""A fault as a value, its check, and the table of all kinds of faults.

A fault has a kind, parameters and a place. A new kind needs a row of the table and an implementation. A kind
with ``phases`` is made of other kinds, live and in virtual time, so it needs no implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Literal

from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric

MIN_PERIOD_NS = 10_000_000

Direction = Literal["both", "up", "down"]
"""The direction of frames over a link: ``up`` is away from the hosts."""
DIRECTIONS: tuple[Direction, ...] = ("both", "up", "down")


class Place(Enum):
    """The kinds of place that a fault can break. Each value describes how to write such a place."""

    LINK = "link, such as p0-t0-0:p0-t1-1"
    NIC_PORT = "NIC port, such as h0-eth1"
    SWITCH = "switch, such as p0-t1-0"
    PLANE = "plane, such as p0"

    @property
    def short(self) -> str:
        """Return the name of the place on the live page: link, port, switch or plane."""
        return {Place.NIC_PORT: "port"}.get(self, self.name.lower())


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault to make. A parameter that its kind does not take keeps its default.

    ``direction`` is the direction of the affected frames: ``up`` is away from the hosts. ``ratio`` is above 0
    and at most 1. It is the share of frames that are lost or corrupted (in steps of 2^-32), or the share of
    the link's rate that is left. ``delay_ns`` is added in both directions. A fault that comes and
    goes has ``period_ns`` and ``down_ns``. A reboot takes ``down_ns``. ``of`` is the kind of fault that a
    flap makes.
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
    """The two times of CLOCK_MONOTONIC between which a change took effect.

    ``stamped_by`` is the part of mrclab that read the clock.
    """

    t_before_ns: int
    t_after_ns: int
    stamped_by: Literal["switch", "controller", "testbed"]


@dataclass(frozen=True, slots=True)
class Transition:
    """One cycle of a fault: when the place went down, and when it came up (None if it is still down)."""

    down: Moment
    up: Moment | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a fault that consists of other faults.

    In this phase, a fault of the kind ``kind`` begins at ``start_ns`` and lasts for ``length_ns``.
    """

    kind: str
    start_ns: int
    length_ns: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of faults: its field in `Fault`, the form of its value, and a sentence for ``--help``."""

    name: str
    form: Literal["ratio", "time", "direction", "kind"]
    help: str

    @property
    def key(self) -> str:
        """Return the parameter's name in a scenario, without the unit."""
        return self.name.removesuffix("_ns")

    @property
    def flag(self) -> str:
        """Return the parameter's option on the command line."""
        return "--" + self.key


PARAMETERS: Mapping[str, Parameter] = {
    parameter.name: parameter
    for parameter in (
        Parameter("direction", "direction", "The direction of the frames; up is away from the hosts (both)."),
        Parameter(
            "ratio",
            "ratio",
            "The share of frames that is lost or corrupted, or of the rate that is left (1).",
        ),
        Parameter("delay_ns", "time", "The delay added to the link, each way (1 ms)."),
        Parameter("period_ns", "time", "The time from the start of one cycle to the next (1 s)."),
        Parameter("down_ns", "time", "The time down in a cycle, or until a switch boots (500 ms)."),
        Parameter("of", "kind", "The kind of fault that a flap makes: blackhole or carrier (blackhole)."),
    )
}


@dataclass(frozen=True, slots=True)
class Button:
    """A button of the live page: its key on the keyboard, its label, and the parameters of its fault."""

    key: str
    label: str
    params: Mapping[str, float | int | str] | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """How random faults choose this kind.

    ``weight`` is how often the kind is chosen, relative to other kinds. The fault's ``ratio`` is one of
    ``ratios``.
    """

    weight: int
    ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table of kinds.

    ``does`` is a sentence for users. ``words`` are a few words about one fault, with its fields in braces.
    ``takes`` names the kind's parameters. If a fault consists of faults of other kinds that begin and end,
    ``phases`` returns one cycle of the fault. ``lets_through`` is True if some frames pass the faulty place,
    perhaps changed, late, or only at some times. ``silences`` is True if no hello of a routing protocol
    passes. ``routed`` is True if routers can have the fault, too. ``lossless_only`` is True if the fault
    needs a simulated fabric with lossless links.
    """

    name: str
    place: Place
    does: str
    words: str
    takes: tuple[str, ...] = ()
    phases: Callable[[Fault], tuple[Phase, ...]] | None = None
    lets_through: bool = False
    silences: bool = False
    routed: bool = False
    lossless_only: bool = False
    buttons: tuple[Button, ...] = ()
    random: Draw | None = None


_DEFAULTS = Fault("", "")
_OPTIONS = tuple(f.name for f in fields(Fault) if f.name not in ("kind", "where"))


def check_parameters(kind: Kind, fault: Fault) -> None:
    """Raise InputError if a parameter has an invalid value, or the kind does not take it."""
    for name in _OPTIONS:
        if name not in kind.takes and getattr(fault, name) != getattr(_DEFAULTS, name):
            takes = ", ".join(PARAMETERS[taken].flag for taken in kind.takes) or "no options"
            raise InputError(f"{kind.name} has no use for {PARAMETERS[name].flag}: it takes {takes}")
    if fault.direction not in DIRECTIONS:
        raise InputError(f"a direction is both, up or down, not '{fault.direction}'")
    if not 0 < fault.ratio <= 1:
        raise InputError(f"a ratio is above 0 and at most 1, not {fault.ratio}")
    if "delay_ns" in kind.takes and fault.delay_ns <= 0:
        raise InputError("a delay is longer than nothing")
    if "down_ns" in kind.takes and fault.down_ns <= 0:
        raise InputError("the time down is longer than nothing")
    if "period_ns" in kind.takes and (fault.period_ns < MIN_PERIOD_NS or fault.down_ns >= fault.period_ns):
        raise InputError(f"a {kind.name}'s period is 10 ms or longer, and longer than the time down in it")


def resolved_place(fabric: Fabric, place: Place, where: str) -> str | None:
    """Return the name of a place as the fabric writes it; None if the fabric has no such place."""
    if place is Place.LINK:
        a, _, b = where.partition(":")
        return fabric.link(a, b).name if fabric.has_link(a, b) else None
    return where if where in all_places(fabric, place) else None


def all_places(fabric: Fabric, place: Place) -> list[str]:
    """Return all places of a kind, in the fabric's order."""
    if place is Place.LINK:
        return [link.name for link in fabric.links]
    if place is Place.NIC_PORT:
        return [port.ifname for host in fabric.hosts for port in host.ports]
    if place is Place.SWITCH:
        return [switch.name for switch in fabric.switches]
    return [f"p{plane}" for plane in range(fabric.planes)]


def switches_at(fabric: Fabric, where: str) -> tuple[str, ...]:
    """Return the switches of a place: the switch itself, or all switches of a plane."""
    return tuple(s.name for s in fabric.switches if where in (s.name, f"p{s.plane}"))


FLAP_OF = ("blackhole", "carrier")


def _flap(fault: Fault) -> tuple[Phase, ...]:
    return (Phase(fault.of, 0, fault.down_ns),)


def _reboot(fault: Fault) -> tuple[Phase, ...]:
    return (Phase("switch-death", 0, fault.down_ns),)


def _failing_optic(fault: Fault) -> tuple[Phase, ...]:
    lit_ns = fault.period_ns - fault.down_ns
    return (Phase("corruption", 0, lit_ns), Phase("blackhole", lit_ns, fault.down_ns))


def _table(*kinds: Kind) -> Mapping[str, Kind]:
    return {kind.name: kind for kind in kinds}


ALL_KINDS = _table(
    Kind(
        "blackhole",
        Place.LINK,
        "drops every frame; the carrier stays up, so neither end notices",
        "silent cut",
        ("direction",),
        silences=True,
        routed=True,
        buttons=(Button("c", "Cut silently"),),
        random=Draw(4),
    ),
    Kind(
        "loss",
        Place.LINK,
        "drops a share of the frames, at random",
        "loses {ratio:.2%}",
        ("direction", "ratio"),
        routed=True,
        buttons=(Button("1", "Lose 1 %", {"ratio": 0.01}), Button("5", "Lose 20 %", {"ratio": 0.2})),
        random=Draw(3, (0.001, 0.01, 0.1, 0.5)),
    ),
    Kind(
        "corruption",
        Place.LINK,
        "flips a bit of a share of the frames",
        "corrupts {ratio:.2%}",
        ("direction", "ratio"),
        lets_through=True,
        buttons=(Button("b", "Corrupt 1 %", {"ratio": 0.01}),),
        random=Draw(2, (0.001, 0.01, 0.1)),
    ),
    Kind(
        "rate",
        Place.LINK,
        "leaves a share of the link's rate and drops the excess",
        "{ratio:.0%} of its rate left",
        ("direction", "ratio"),
        lets_through=True,
        random=Draw(2, (0.005, 0.05, 0.3)),
    ),
    Kind(
        "carrier",
        Place.LINK,
        "takes the carrier away, like a pulled cable",
        "unplugged",
        silences=True,
        routed=True,
        buttons=(Button("p", "Unplug"),),
    ),
    Kind(
        "port-down",
        Place.NIC_PORT,
        "takes a port of a NIC down, as its own host would",
        "NIC port down",
        routed=True,
        buttons=(Button("p", "Take down"),),
        random=Draw(2),
    ),
    Kind(
        "delay",
        Place.LINK,
        "makes the link longer, each way",
        "{delay_ms:g} ms longer",
        ("delay_ns",),
        lets_through=True,
        buttons=(Button("d", "Delay 2 ms", {"delay_ns": 2_000_000}),),
    ),
    Kind(
        "flap",
        Place.LINK,
        "breaks the link for a while in every period",
        "flaps",
        ("direction", "period_ns", "down_ns", "of"),
        phases=_flap,
        lets_through=True,
        buttons=(Button("f", "Flap", {"period_ns": 1_000_000_000, "down_ns": 300_000_000}),),
    ),
    Kind(
        "failing-optic",
        Place.LINK,
        "corrupts a share of the frames, then goes dark for a while, in every period",
        "optic fails, corrupts {ratio:.2%}",
        ("direction", "ratio", "period_ns", "down_ns"),
        phases=_failing_optic,
        lets_through=True,
        buttons=(
            Button(
                "o",
                "Failing optic",
                {"ratio": 0.05, "period_ns": 1_000_000_000, "down_ns": 200_000_000},
            ),
        ),
    ),
    Kind(
        "switch-death",
        Place.SWITCH,
        "ends a switch; undoing it boots the switch again, empty, and programs it",
        "switch dead",
        silences=True,
        routed=True,
        buttons=(Button("k", "Kill"),),
    ),
    Kind(
        "switch-reboot",
        Place.SWITCH,
        "ends a switch, which boots again by itself",
        "switch reboots",
        ("down_ns",),
        phases=_reboot,
        lets_through=True,
        silences=True,
        buttons=(Button("r", "Reboot (2 s)", {"down_ns": 2_000_000_000}),),
    ),
    Kind(
        "plane-death",
        Place.PLANE,
        "ends every switch of a plane at once",
        "plane dead",
        silences=True,
        routed=True,
        buttons=(Button("k", "Kill the plane"),),
    ),
    Kind(
        "pause-storm",
        Place.NIC_PORT,
        "makes a NIC pause its sender without end; on links with credits it returns none",
        "pauses without end",
        lets_through=True,
        lossless_only=True,
    ),
)
"""All kinds of faults, by name."""
KINDS = {name: kind for name, kind in ALL_KINDS.items() if not kind.lossless_only}
"""The kinds that a running testbed can make."""


def kind_named(name: str) -> Kind:
    """Return the kind with this name. Raise InputError if no kind has this name."""
    if name not in ALL_KINDS:
        raise InputError(f"no fault kind '{name}': choose {', '.join(ALL_KINDS)}")
    return ALL_KINDS[name]


def checked(fabric: Fabric, fault: Fault) -> Fault:
    """Check a fault; return it with the name of its place as the fabric writes it.

    Raise InputError if the fault is invalid. The message has one line and says what to write instead.
    """
    kind = kind_named(fault.kind)
    check_parameters(kind, fault)
    if "of" in kind.takes and fault.of not in FLAP_OF:
        raise InputError(f"a {kind.name} is of {' or '.join(FLAP_OF)}, not '{fault.of}'")
    if kind.name == "flap" and fault.of == "carrier" and fault.direction != "both":
        raise InputError("carrier is lost both ways: no direction")
    where = resolved_place(fabric, kind.place, fault.where)
    if where is None:
        raise InputError(
            f"no {kind.place.value.split(',')[0]} '{fault.where}' in {fabric.name}: give a {kind.place.value}"
        )
    return replace(fault, where=where)


def phase_fault(fault: Fault, phase: Phase) -> Fault:
    """Return the fault that a phase makes: the phase's kind, with the parameters that this kind takes."""
    given = {name: getattr(fault, name) for name in ALL_KINDS[phase.kind].takes}
    return Fault(phase.kind, fault.where, **given)


def describe(fault: Fault) -> str:
    """Return a description of a fault in a few words."""
    values = {
        "ratio": fault.ratio,
        "delay_ms": fault.delay_ns / 1e6,
    }
    direction = "" if fault.direction == "both" else f", {fault.direction} only"
    return ALL_KINDS[fault.kind].words.format(**values) + direction
