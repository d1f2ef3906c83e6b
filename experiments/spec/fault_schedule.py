"""From the faults of a scenario to a schedule: what is broken when, at which place, and when it is mended.

Pure: places are chosen by seed, times are nanoseconds after the measurement starts.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from controller import fault_kinds
from controller.fault_kinds import Place
from experiments.spec.keys import Key, read_keys
from linux.errors import InputError
from topologies import Fabric
from topologies.yamlfile import YamlMap

RANDOM = "random"
BUSIEST = "busiest"
REBOOT, DEATH = "switch-reboot", "switch-death"
KINDS: dict[str, Place] = {name: kind.place for name, kind in fault_kinds.KINDS.items() if name != "flap"}
"""Which places a kind of fault can strike. A flap is any of them with an ``every``: then it has a record each
time."""

FAULT_KEYS = (
    Key("kind", "choice", "what breaks", choices=tuple(KINDS)),
    Key("pick", "int", "how many of the places, by seed, each time; 0: all", 0, high=100_000),
    Key("at", "time", "after the measurement starts", 0),
    Key("duration", "time", "how long it stays; 0: to the end", 0),
    Key("every", "time", "how long from one time to the next; 0: once", 0),
    Key("count", "int", "how many times at most; 0: as long as the workload goes on", 0, high=100_000),
    Key("direction", "choice", "up is away from the hosts", "both", choices=("both", "up", "down")),
    Key("ratio", "number", "share of frames lost or corrupted, or of the rate that is left", 1.0, high=1.0),
    Key("delay", "time", "that a link gets on top (kind delay)", 1_000_000),
)


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One entry of ``faults``, as written."""

    kind: str
    where: tuple[str, ...]
    pick: int = 0
    at_ns: int = 0
    duration_ns: int = 0
    every_ns: int = 0
    count: int = 0
    direction: str = "both"
    ratio: float = 1.0
    delay_ns: int = 1_000_000

    @classmethod
    def of(cls, part: YamlMap, what: str) -> FaultSpec:
        """Reads one. Raises InputError."""
        found = read_keys(part, FAULT_KEYS, what, ("where",), f"{what}.")
        value = part.require("where", what)
        items = value.as_list(f"{what}.where") if isinstance(value.data, list) else [value]
        if not items:
            raise value.error(f"{what}.where is empty")
        if found["every_ns"] and found["duration_ns"] >= found["every_ns"]:
            raise part["every"].error(f"{what}.every must be longer than its duration")
        if found["kind"] == REBOOT and not found["duration_ns"]:
            raise part.error(f"{what}: a {REBOOT} needs a duration: how long the switch is away")
        takes = (*fault_kinds.KINDS[found["kind"]].takes, "where")
        for key in ("direction", "ratio", "delay"):
            if key in part and key not in takes and f"{key}_ns" not in takes:
                raise part[key].error(f"{what}.{key}: a {found['kind']} has no use for it")
        if found["delay_ns"] <= 0:
            raise part["delay"].error(f"{what}.delay must be longer than nothing")
        if found["ratio"] <= 0:
            raise part["ratio"].error(f"{what}.ratio must be above 0")
        return cls(where=tuple(item.as_str(f"{what}.where") for item in items), **found)

    @property
    def params(self) -> Mapping[str, Any]:
        """What the kind needs besides its place."""
        if self.kind in ("loss", "corruption", "rate"):
            return {"ratio": self.ratio}
        if self.kind == "delay":
            return {"delay_ns": self.delay_ns}
        return {}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault to make; ``place`` names a link, a switch, a NIC's port (h0-eth1) or a plane (p0)."""

    kind: str
    place: str
    at_ns: int
    until_ns: int | None
    """When it is mended; None: at the end of the repetition."""
    direction: str = "both"
    params: Mapping[str, Any] = field(default_factory=dict)
    entry: int = 0
    """Which entry of ``faults`` it comes from."""

    def __str__(self) -> str:
        until = "the end" if self.until_ns is None else f"{self.until_ns / 1e6:g} ms"
        extra = "".join(f" {key} {value}" for key, value in self.params.items())
        way = "" if self.direction == "both" else f" {self.direction}"
        return f"{self.kind} on {self.place}{way}{extra} from {self.at_ns / 1e6:g} ms to {until}"


def places_of(fabric: Fabric, kind: str) -> list[str]:
    """All places of a fabric that a kind of fault can strike, in the fabric's order."""
    place = KINDS[kind]
    if place is Place.LINK:
        return [link.name for link in fabric.links]
    if place is Place.NIC_PORT:
        return [port.ifname for host in fabric.hosts for port in host.ports]
    if place is Place.SWITCH:
        return [switch.name for switch in fabric.switches]
    return [f"p{plane}" for plane in range(fabric.planes)]


def matching(spec: FaultSpec, fabric: Fabric, used: Sequence[str] = ()) -> list[str]:
    """The places that an entry's ``where`` names. ``random`` is any T0-T1 link of ``used``, or of all."""
    found: list[str] = []
    all_places = places_of(fabric, spec.kind)
    for pattern in spec.where:
        if pattern == BUSIEST and KINDS[spec.kind] is Place.LINK:
            fitting = [BUSIEST]
        elif pattern == RANDOM:
            fitting = [
                link.name
                for link in fabric.links
                if link.kind == "fabric" and (not used or link.name in used)
            ]
            fitting = fitting if KINDS[spec.kind] is Place.LINK else all_places
        else:
            fitting = [place for place in all_places if fnmatchcase(place, pattern)]
        found += [place for place in fitting if place not in found]
    return found


def check_places(specs: Sequence[FaultSpec], fabric: Fabric, where: str) -> None:
    """Raises InputError on an entry whose ``where`` names nothing in the fabric."""
    for number, spec in enumerate(specs):
        places = matching(spec, fabric)
        if not places:
            raise InputError(
                f"faults[{number}].where: '{', '.join(spec.where)}' matches nothing in {fabric.name}: "
                f"give a {KINDS[spec.kind].value}",
                where=where,
            )
        if spec.pick > len(places):
            raise InputError(f"faults[{number}].pick: there are only {len(places)} such places", where=where)


def schedule(
    specs: Sequence[FaultSpec], fabric: Fabric, seed: int, length_ns: int, used: Sequence[str] = ()
) -> tuple[PlannedFault, ...]:
    """All faults of a repetition, in time's order.

    ``length_ns`` is how long the workload goes on as far as is known: what repeats without a count stops
    there. ``used`` are the links that the workload's traffic can take.
    """
    planned: list[PlannedFault] = []
    for number, spec in enumerate(specs):
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
            until = start + spec.duration_ns if spec.duration_ns else None
            # A reboot whose end has a time of its own is a death that is undone.
            kind = DEATH if spec.kind == REBOOT else spec.kind
            planned += [
                PlannedFault(kind, place, start, until, spec.direction, spec.params, number)
                for place in chosen
            ]
    return tuple(sorted(planned, key=lambda fault: fault.at_ns))


def _starts(spec: FaultSpec, length_ns: int) -> list[int]:
    if not spec.every_ns:
        return [spec.at_ns]
    starts = range(spec.at_ns, max(length_ns, spec.at_ns + 1), spec.every_ns)
    if spec.count:
        return [spec.at_ns + i * spec.every_ns for i in range(spec.count)]
    return list(starts)
