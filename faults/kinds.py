"""The table of the kinds of faults. A new kind is a row here and an implementation of its kind.

A kind with ``phases`` needs no implementation: it is made of other kinds, live and in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mrclab.faults.model import Button, Draw, Fault, Kind, Phase, Place, check_parameters, resolved_place
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric

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
"""Every kind, by name."""
KINDS = {name: kind for name, kind in ALL_KINDS.items() if not kind.lossless_only}
"""The kinds that a running testbed can make."""


def kind_named(name: str) -> Kind:
    """Return the kind of that name. Raise InputError if there is none."""
    if name not in ALL_KINDS:
        raise InputError(f"no fault kind '{name}': choose {', '.join(ALL_KINDS)}")
    return ALL_KINDS[name]


def checked(fabric: Fabric, fault: Fault) -> Fault:
    """Return the fault with its place as the fabric writes it.

    Raise InputError, in one line that names the mend, if the fault makes no sense.
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
    """Return the fault that a phase makes: its kind, with the parameters that this kind takes."""
    given = {name: getattr(fault, name) for name in ALL_KINDS[phase.kind].takes}
    return Fault(phase.kind, fault.where, **given)


def describe(fault: Fault) -> str:
    """Return a fault in a few words."""
    values = {
        "ratio": fault.ratio,
        "delay_ms": fault.delay_ns / 1e6,
    }
    direction = "" if fault.direction == "both" else f", {fault.direction} only"
    return ALL_KINDS[fault.kind].words.format(**values) + direction
