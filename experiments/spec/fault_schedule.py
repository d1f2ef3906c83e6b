"""Make a schedule from the entries of a scenario's ``faults``: each fault's place, beginning and end.

The seed alone determines the places and the random faults. Times are nanoseconds after the measurement
starts. On a fabric with one plane, a fault in any plane is made at the same place in plane 0.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fnmatch import fnmatchcase
from heapq import merge
from itertools import combinations
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
    """One fault to make. ``place`` names a link, a switch, a NIC's port (h0-eth1) or a plane (p0).

    If ``until_ns`` is None, the fault lasts until the repetition ends. ``entry`` is the index of the entry in
    ``faults`` that describes the fault.
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
    """Return the names of all places that this kind of fault can break, in the fabric's order."""
    return all_places(fabric, ALL_KINDS[kind].place)


def matching(spec: Placed, fabric: Fabric, used: Sequence[str] = ()) -> list[str]:
    """Return the places that the key ``where`` of an entry names.

    ``used`` are the links that the traffic can take.

    For a kind of fault that breaks links, ``random`` names all T0-T1 links in ``used``. If ``used`` is empty,
    ``random`` names all T0-T1 links of the fabric. For a kind that breaks switches, ``random`` names the T1s
    at the ends of the same links.
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
    """Raise InputError if the ``where`` of an entry names no place of the fabric.

    If ``used`` is given, also raise InputError if an entry names links, and no named link is in ``used``.
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
    """Return the links that hosts avoid during a drain: the named links, and all links of named switches."""
    return tuple(
        link.name
        for link in fabric.links
        for pattern in spec.where
        if any(fnmatchcase(name, pattern) for name in (link.name, link.a.node, link.b.node))
    )


def denylists(specs: Sequence[FaultSpec], fabric: Fabric) -> tuple[tuple[int, tuple[str, ...]], ...]:
    """Return (time, links that hosts avoid from then on) for each start or end of a drain, by time."""
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
    """Raise InputError if a fault cannot be made on the fabric of one of the transports.

    Linux routers support fewer kinds of faults than P4 switches. BMv2's interfaces must not go down.
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
    """Return the kinds of faults that an entry can cause: a flap, for instance, is a series of blackholes."""
    if isinstance(spec, RandomFaults):
        return tuple(kind.name for kind in ALL_KINDS.values() if kind.random is not None)
    phases = ALL_KINDS[spec.kind].phases
    return (spec.kind,) if phases is None else tuple(phase.kind for phase in phases(spec.fault()))


def schedule(
    specs: Sequence[FaultSpec], fabric: Fabric, seed: int, length_ns: int, used: Sequence[str] = ()
) -> Iterator[PlannedFault]:
    """Yield all timed faults of a repetition, in order of time. Skip ``specs`` that are not timed.

    ``length_ns`` is the length of the workload, or a limit for it. Faults that repeat without a count stop at
    ``length_ns``. There may be millions of them, and a short run needs only the first ones. ``used`` are the
    links that the workload's traffic can take.
    """
    return merge(
        *(
            _of_entry(spec, fabric, random.Random(seed * 1_000_003 + number), length_ns, used, number)
            for number, spec in enumerate(specs)
            if isinstance(spec, TimedFault)
        ),
        key=lambda fault: fault.at_ns,
    )


def _of_entry(
    spec: TimedFault,
    fabric: Fabric,
    chooser: random.Random,
    length_ns: int,
    used: Sequence[str],
    number: int,
) -> Iterator[PlannedFault]:
    """Yield the faults of entry ``number`` in order of time."""
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
            for place in chosen:
                yield _planned(replace(fault, where=place), at_ns, until_ns, number)


def _planned(fault: Fault, at_ns: int, until_ns: int | None, entry: int) -> PlannedFault:
    params = {name: getattr(fault, name) for name in ALL_KINDS[fault.kind].takes if name != "direction"}
    return PlannedFault(fault.kind, fault.where, at_ns, until_ns, fault.direction, params, entry)


def _times(spec: TimedFault, start: int) -> Iterator[tuple[Fault, int, int | None]]:
    """Yield (fault without place, beginning, end) for each fault of an entry that begins at ``start``."""
    until = start + spec.duration_ns if spec.duration_ns else None
    fault, phases = spec.fault(), ALL_KINDS[spec.kind].phases
    if phases is None or until is None:
        yield fault, start, until
    elif boots_again(spec.kind):  # the switch is down for the entry's duration
        for phase in phases(fault):
            yield phase_fault(fault, phase), start, until
    else:
        assert repeats(spec.kind)
        for cycle in range(start, until, spec.period_ns):
            for phase in phases(fault):
                at_ns = cycle + phase.start_ns
                if at_ns < until:
                    yield phase_fault(fault, phase), at_ns, min(at_ns + phase.length_ns, until)


def trials_of(
    spec: SequentialFaults, number: int, fabric: Fabric, seed: int, used: Sequence[str]
) -> tuple[PlannedFault, ...]:
    """Return the faults of a sequential entry. Each fault begins at time 0 of a separate trial.

    The seed gives a random order of the places. After the last place, a new random order follows.
    """
    places = matching(spec, fabric, used)
    chooser = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < spec.trials:
        chosen += chooser.sample(places, len(places))
    return tuple(_planned(spec.fault(place), 0, spec.hold_ns, number) for place in chosen[: spec.trials])


def _starts(spec: TimedFault, length_ns: int) -> Sequence[int]:
    if not spec.every_ns:
        return [spec.at_ns]
    end_ns = spec.at_ns + spec.count * spec.every_ns if spec.count else max(length_ns, spec.at_ns + 1)
    return range(spec.at_ns, end_ns, spec.every_ns)


def place_in_one_plane(place: str) -> str:
    """Return the name or pattern of a place, with plane 0 instead of any other plane."""
    place = re.sub(r"\bp(\d+|\*|\?|\[[^\]]*\])-t", "p0-t", place)
    place = re.sub(r"^p(\d+|\*|\?|\[[^\]]*\])$", "p0", place)
    return re.sub(r"^(h[^:]*)-eth.*$", r"\1-eth0", place)


def faults_met(specs: Sequence[FaultSpec], transport: Transport) -> tuple[FaultSpec, ...]:
    """Return the faults to make under a transport. For a control (a run without faults), return no fault.

    An entry with ``over: planes`` applies only to transports over all planes, and an entry with ``over:
    one-plane`` only to transports over one plane.
    """
    if not transport.faults:
        return ()
    other = "planes" if transport.one_plane else "one-plane"
    met = tuple(spec for spec in specs if getattr(spec, "over", "any") != other)
    return specs_in_one_plane(met) if transport.one_plane else met


def specs_in_one_plane(specs: Sequence[FaultSpec]) -> tuple[FaultSpec, ...]:
    """Return the same faults for a fabric of one plane. If two faults get the same place, keep only one."""
    return tuple(spec if isinstance(spec, RandomFaults) else _in_one_plane(spec) for spec in specs)


def _in_one_plane(spec: TimedFault | SequentialFaults | Drain) -> FaultSpec:
    where = tuple(dict.fromkeys(place_in_one_plane(place) for place in spec.where))
    return spec.model_copy(update={"where": where})


KINDS = tuple(
    (kind.name, kind.random.weight, kind.random.ratios)
    for kind in ALL_KINDS.values()
    if kind.random is not None
)
"""The kinds of random faults: (name, weight in the random choice, possible values of ``ratio``)."""
CUTTING = tuple(
    name for name, _, _ in KINDS if not ALL_KINDS[name].lets_through and "ratio" not in ALL_KINDS[name].takes
)
"""The kinds of random faults that stop every frame at their place."""


def random_faults(
    fabric: Fabric, hosts: Sequence[str], faults: RandomFaults, seed: int, length_ns: int, entry: int = 0
) -> Iterator[PlannedFault]:
    """Yield random faults in order of time. All faults end by ``length_ns``. Equal seeds give equal faults.

    The faults break links on paths between ``hosts``, and the hosts' NIC ports. If a fault would leave two of
    the hosts without a working path, it lasts at most ``cut_off_ns``.
    """
    chooser = random.Random(seed)
    paths = [[set(p.links) for p in fabric.paths(a, b)] for a, b in combinations(hosts, 2)]
    links = sorted(set().union(*(links for pair in paths for links in pair)))
    ports = [port.ifname for host in hosts for port in fabric.host(host).ports]
    link_of = {port.ifname: f"{host}:{port.t0}" for host in hosts for port in fabric.host(host).ports}
    active: list[PlannedFault] = []
    now = 0
    while True:
        now += max(1, _exponential_ns(faults.every_ns, chooser))
        (kind, _, ratios) = chooser.choices(KINDS, [weight for _, weight, _ in KINDS])[0]
        at_port = ALL_KINDS[kind].place is Place.NIC_PORT
        direction = "both" if at_port else chooser.choice(("both", "both", "up", "down"))
        place = chooser.choice(ports if at_port else links)
        ratio = chooser.choice(ratios) if ratios else None
        lasts = _log_uniform_ns(faults.shortest_ns, faults.longest_ns, chooser)
        if now + faults.shortest_ns >= length_ns:
            return
        active = [fault for fault in active if fault.until_ns is not None and fault.until_ns > now]
        taken = {link_of.get(fault.place, fault.place) for fault in active}
        if len(active) >= faults.at_once or link_of.get(place, place) in taken:
            continue
        until = min(now + lasts, length_ns)
        if kind in CUTTING:
            cut = {link_of.get(f.place, f.place) for f in active if f.kind in CUTTING}
            cut.add(link_of.get(place, place))
            if any(all(links & cut for links in pair) for pair in paths):
                until = min(until, now + faults.cut_off_ns)
                if until <= now:
                    continue
        params = {} if ratio is None else {"ratio": ratio}
        planned = PlannedFault(kind, place, now, until, direction, params, entry)
        active.append(planned)
        yield planned


# Random times are computed with Decimal, so that a seed gives the same times on every machine. For floats,
# logarithms and powers differ in the last bit between C libraries.


def _exponential_ns(mean_ns: int, chooser: random.Random) -> int:
    return round(-mean_ns * Decimal(1 - chooser.random()).ln())


def _log_uniform_ns(least_ns: int, most_ns: int, chooser: random.Random) -> int:
    """Return a random time between two limits. Its logarithm is distributed uniformly."""
    return round(least_ns * (Decimal(most_ns) / least_ns) ** Decimal(chooser.random()))
