"""From the entries of ``faults`` to a schedule: each fault with its place, its beginning and its end.

Pure: places are chosen by seed, times are nanoseconds after the measurement starts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from mrclab.experiments.spec.faults import (
    BUSIEST,
    RANDOM,
    Drain,
    FaultSpec,
    RandomFaults,
    SequentialFaults,
    TimedFault,
    boots_again,
    repeats,
)
from mrclab.faults.kinds import ALL_KINDS, Fault, Place, all_places, phase_fault
from mrclab.hosts.transports.table import Transport
from mrclab.linux.errors import InputError
from mrclab.p4src.targets import PORT_DOWN_HALTS, capabilities_of
from mrclab.topologies import Fabric

Placed = TimedFault | SequentialFaults
ROUTED_KINDS = tuple(kind.name for kind in ALL_KINDS.values() if kind.routed)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to make; ``place`` names a link, a switch, a NIC's port (h0-eth1) or a plane (p0).

    ``until_ns`` None: it is undone at the end of the repetition. ``entry`` is the index of its entry.
    """

    kind: str
    place: str
    at_ns: int
    until_ns: int | None
    direction: str = "both"
    params: Mapping[str, Any] = field(default_factory=dict)
    entry: int = 0

    def __str__(self) -> str:
        until = "the end" if self.until_ns is None else f"{self.until_ns / 1e6:g} ms"
        extra = "".join(f" {key} {value}" for key, value in self.params.items())
        way = "" if self.direction == "both" else f" {self.direction}"
        return f"{self.kind} on {self.place}{way}{extra} from {self.at_ns / 1e6:g} ms to {until}"


def places_of(fabric: Fabric, kind: str) -> list[str]:
    """Return all places of a fabric that a kind of fault can break, in the fabric's order."""
    return all_places(fabric, ALL_KINDS[kind].place)


def matching(spec: Placed, fabric: Fabric, used: Sequence[str] = ()) -> list[str]:
    """Return the places that an entry's ``where`` names; ``used`` are the links that the traffic can take.

    ``random`` is any link between switches of ``used`` (of all, without any), or any upper end of one.
    """
    found: list[str] = []
    place, candidates = ALL_KINDS[spec.kind].place, places_of(fabric, spec.kind)
    fabric_links = [
        link for link in fabric.links if link.kind == "fabric" and (not used or link.name in used)
    ]
    for pattern in spec.where:
        if pattern == BUSIEST and place is Place.LINK:
            fitting = [BUSIEST]
        elif pattern == RANDOM and place is Place.LINK:
            fitting = [link.name for link in fabric_links]
        elif pattern == RANDOM and place is Place.SWITCH:
            tops = {link.b.node for link in fabric_links}
            fitting = [name for name in candidates if name in tops]
        else:
            fitting = [name for name in candidates if pattern == RANDOM or fnmatchcase(name, pattern)]
        found += [name for name in fitting if name not in found]
    return found


def check_places(specs: Sequence[FaultSpec], fabric: Fabric, where: str, used: Sequence[str] = ()) -> None:
    """Raise InputError on an entry whose ``where`` names nothing in the fabric.

    With ``used``, raise it also if no named link is one of these.
    """
    for number, spec in enumerate(specs):
        if isinstance(spec, RandomFaults):
            continue
        if isinstance(spec, Drain):
            _check_drain(spec, fabric, f"faults[{number}].where", where)
            continue
        what, places = f"faults[{number}]", matching(spec, fabric, used)
        names = ", ".join(spec.where)
        if not places:
            raise InputError(
                f"{what}.where: '{names}' matches nothing in {fabric.name}: "
                f"give a {ALL_KINDS[spec.kind].place.value}",
                where=where,
            )
        if isinstance(spec, TimedFault) and spec.pick > len(places):
            raise InputError(f"{what}.pick: there are only {len(places)} such places", where=where)
        links = [name for name in places if ALL_KINDS[spec.kind].place is Place.LINK and name != BUSIEST]
        if used and links and not set(links) & set(used):
            raise InputError(f"{what}.where: '{names}' is on no path of the traffic", where=where)


def _check_drain(spec: Drain, fabric: Fabric, key: str, where: str) -> None:
    for pattern in spec.where:
        if not drained_links(spec.model_copy(update={"where": (pattern,)}), fabric):
            raise InputError(
                f"{key}: '{pattern}' matches nothing in {fabric.name}: give a switch or a link", where=where
            )


def drained_links(spec: Drain, fabric: Fabric) -> tuple[str, ...]:
    """Return the links that hosts leave alone during a drain: the named ones, and all of the named
    switches."""
    return tuple(
        link.name
        for link in fabric.links
        for pattern in spec.where
        if any(fnmatchcase(name, pattern) for name in (link.name, link.a.node, link.b.node))
    )


def denylists(specs: Sequence[FaultSpec], fabric: Fabric) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return the links that hosts leave alone, from each time on at which that changes, in time's order."""
    drains = [spec for spec in specs if isinstance(spec, Drain)]
    changes = {spec.at_ns for spec in drains}
    changes |= {spec.at_ns + spec.duration_ns for spec in drains if spec.duration_ns}
    return tuple(
        (
            at_ns,
            tuple(
                dict.fromkeys(
                    link for spec in drains if _lasts(spec, at_ns) for link in drained_links(spec, fabric)
                )
            ),
        )
        for at_ns in sorted(changes)
    )


def _lasts(spec: Drain, at_ns: int) -> bool:
    return spec.at_ns <= at_ns and (not spec.duration_ns or at_ns < spec.at_ns + spec.duration_ns)


def check_makeable(
    specs: Sequence[FaultSpec], transports: Sequence[Transport], fabric: Fabric, target: str, where: str
) -> None:
    """Raise InputError on an entry that the fabric of one of the transports cannot make.

    Routers can be broken in fewer ways than our switches; BMv2's own interfaces must not go down.
    """
    routed = next((t.name for t in transports if t.routing == "frr"), None)
    switched = any(t.routing != "frr" for t in transports)
    for number, spec in enumerate(specs):
        if isinstance(spec, Drain):
            continue
        kinds = [ALL_KINDS[name] for name in _made_as(spec)]
        dropping = [t.name for t in transports if t.faults and not t.lossless]
        if any(kind.lossless_only for kind in kinds) and dropping:
            raise InputError(
                f"faults[{number}].kind: nothing can pause what sends over links that drop, as those of "
                f"{dropping[0]} do: give it lossless, or faults: false",
                where=where,
            )
        if routed is not None and not all(kind.routed for kind in kinds):
            raise InputError(
                f"faults[{number}].kind: routers cannot make {spec.kind} ({routed} runs on routers): "
                f"choose {', '.join(ROUTED_KINDS)}, or leave {routed} out",
                where=where,
            )
        if "carrier" not in _made_as(spec) or not switched or capabilities_of(target).ports_can_go_down:
            continue
        assert not isinstance(spec, RandomFaults)
        between = {link.name for link in fabric.links if link.kind == "fabric"} | {BUSIEST}
        if between & set(matching(spec, fabric)):
            raise InputError(
                f"faults[{number}].kind: {PORT_DOWN_HALTS}: use blackhole on links between switches",
                where=where,
            )


def _made_as(spec: TimedFault | SequentialFaults | RandomFaults) -> tuple[str, ...]:
    """Return the kinds of fault that make an entry's faults."""
    if isinstance(spec, RandomFaults):
        return tuple(kind.name for kind in ALL_KINDS.values() if kind.random is not None)
    phases = ALL_KINDS[spec.kind].phases
    return (spec.kind,) if phases is None else tuple(phase.kind for phase in phases(spec.fault()))


def schedule(
    specs: Sequence[FaultSpec], fabric: Fabric, seed: int, length_ns: int, used: Sequence[str] = ()
) -> tuple[PlannedFault, ...]:
    """Return all timed faults of a repetition, in time's order; the other entries are left out.

    ``length_ns`` is the workload's known length: faults that repeat without a count stop there. ``used`` are
    the links that the workload's traffic can take.
    """
    planned: list[PlannedFault] = []
    for number, spec in enumerate(specs):
        if not isinstance(spec, TimedFault):
            continue
        chooser = random.Random(seed * 1_000_003 + number)
        places = matching(spec, fabric, used)
        pick = spec.pick or (1 if RANDOM in spec.where else 0)
        deck: list[str] = []
        for start in _starts(spec, length_ns):
            if pick:
                while len(deck) < pick:
                    rest = [place for place in places if place not in deck]
                    deck += chooser.sample(rest, len(rest))
                chosen, deck = deck[:pick], deck[pick:]
            else:
                chosen = list(places)
            for fault, at_ns, until_ns in _times(spec, start):
                planned += [
                    _planned(replace(fault, where=place), at_ns, until_ns, number) for place in chosen
                ]
    return tuple(sorted(planned, key=lambda fault: fault.at_ns))


def _planned(fault: Fault, at_ns: int, until_ns: int | None, entry: int) -> PlannedFault:
    params = {name: getattr(fault, name) for name in ALL_KINDS[fault.kind].takes if name != "direction"}
    return PlannedFault(fault.kind, fault.where, at_ns, until_ns, fault.direction, params, entry)


def _times(spec: TimedFault, start: int) -> list[tuple[Fault, int, int | None]]:
    """Return each fault that an entry's start stands for, without its place, with its beginning and end."""
    until = start + spec.duration_ns if spec.duration_ns else None
    fault, phases = spec.fault(), ALL_KINDS[spec.kind].phases
    if phases is None or until is None:
        return [(fault, start, until)]
    if boots_again(spec.kind):  # the entry's duration takes the place of the time down
        return [(phase_fault(fault, phase), start, until) for phase in phases(fault)]
    assert repeats(spec.kind)
    return [
        (phase_fault(fault, phase), at, min(at + phase.length_ns, until))
        for cycle in range(start, until, spec.period_ns)
        for phase in phases(fault)
        if (at := cycle + phase.start_ns) < until
    ]


def trials_of(
    spec: SequentialFaults, number: int, fabric: Fabric, seed: int, used: Sequence[str]
) -> tuple[PlannedFault, ...]:
    """Return the faults of a sequential entry, which is ``number`` in the list; times count from each start.

    The places are shuffled by seed, and again when all have been used.
    """
    places = matching(spec, fabric, used)
    chooser = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < spec.trials:
        chosen += chooser.sample(places, len(places))
    return tuple(_planned(spec.fault(place), 0, spec.hold_ns, number) for place in chosen[: spec.trials])


def _starts(spec: TimedFault, length_ns: int) -> list[int]:
    if not spec.every_ns:
        return [spec.at_ns]
    if spec.count:
        return [spec.at_ns + i * spec.every_ns for i in range(spec.count)]
    return list(range(spec.at_ns, max(length_ns, spec.at_ns + 1), spec.every_ns))
