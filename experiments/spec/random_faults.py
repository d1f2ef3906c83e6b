"""Random faults that follow from a seed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import combinations

from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.faults import RandomFaults
from mrclab.faults.kinds import ALL_KINDS, Place
from mrclab.topologies import Fabric

KINDS = tuple(
    (kind.name, kind.random.weight, kind.random.ratios)
    for kind in ALL_KINDS.values()
    if kind.random is not None
)
"""Kind of fault, its weight, and its possible ratios."""
CUTTING = tuple(
    name for name, _, _ in KINDS if not ALL_KINDS[name].lets_through and "ratio" not in ALL_KINDS[name].takes
)
"""Kinds after which no frame passes the place."""


def random_faults(
    fabric: Fabric, hosts: Sequence[str], faults: RandomFaults, seed: int, length_ns: int, entry: int = 0
) -> Iterator[PlannedFault]:
    """Yield all faults, in order of time; the last one is undone at ``length_ns``. Equal seeds: equal faults.

    They break links between these hosts, and the hosts' own ports. A fault that would leave two of the hosts
    without any whole path lasts no longer than ``cut_off_ns``.
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


# Decimals, because logarithms and powers of floats differ in the last bit from one C library to another.


def _exponential_ns(mean_ns: int, chooser: random.Random) -> int:
    """Draw from the exponential distribution."""
    return round(-mean_ns * Decimal(1 - chooser.random()).ln())


def _log_uniform_ns(least_ns: int, most_ns: int, chooser: random.Random) -> int:
    """Draw a time between two; its logarithm is distributed uniformly."""
    return round(least_ns * (Decimal(most_ns) / least_ns) ** Decimal(chooser.random()))
