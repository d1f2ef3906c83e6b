"""The fabric as data for the page: nodes, links, kinds of faults, pairs of hosts. The module has no I/O."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from typing import Any

from mrclab.faults.kinds import KINDS, Place
from mrclab.hosts.transports.table import TRANSPORTS, Look
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric


def fabric_document(fabric: Fabric) -> dict[str, Any]:
    """Return planes, tiers, hosts and links in JSON types.

    Each of ``links`` is [name, lower end, upper end, plane, kind]. Page updates list link loads in this
    order.
    """
    return {
        "name": fabric.name,
        "planes": fabric.planes,
        "hosts": [{"name": host.name, "rack": host.rack} for host in fabric.hosts],
        "switches": [{"name": s.name, "plane": s.plane, "tier": s.tier} for s in fabric.switches],
        "links": [[link.name, link.a.node, link.b.node, link.plane, link.kind] for link in fabric.links],
        "ports": {f"{host.name}:{port.t0}": port.ifname for host in fabric.hosts for port in host.ports},
        "rate_bps": max(link.profile.rate_bps for link in fabric.links),
    }


LOOKS: Mapping[str, Look] = {name: t.look for name, t in TRANSPORTS.items() if t.look is not None}
"""The transports that the live page offers on a running fabric, with their label, colour and dash."""


def about(
    fabric: Fabric,
    target: str,
    version: str,
    usual: Mapping[str, Any],
    looks: Mapping[str, Look] = LOOKS,
) -> dict[str, Any]:
    """Return the page's constant data: the fabric, the kinds of faults, the looks of the transports.

    ``usual`` is the traffic with which a new page starts.
    """
    return {
        "fabric": fabric_document(fabric),
        "target": target,
        "version": version,
        "labels": {name: look.label for name, look in looks.items()},
        "looks": {name: {"tone": look.tone, "dash": look.dash} for name, look in looks.items()},
        "usual": dict(usual),
        "kinds": [
            {"name": k.name, "place": k.place.short, "does": k.does, "takes": list(k.takes)}
            for k in KINDS.values()
        ],
        "buttons": buttons(),
        "evs": {f"{a.name}>{b.name}": evs_between(fabric, a.name, b.name) for a, b in _shown_pairs(fabric)},
    }


def buttons() -> dict[str, list[Any]]:
    """Return the buttons for each kind of place: [key, label, fields of the fault]."""
    found: dict[str, list[Any]] = {place.short: [] for place in Place}
    for kind in KINDS.values():
        for button in kind.buttons:
            found[kind.place.short].append(
                [button.key, button.label, {"kind": kind.name, **(button.params or {})}]
            )
    return found


def evs_between(fabric: Fabric, source: str, target: str) -> list[list[Any]]:
    """Return [EV, plane, T1 or null, links] of each path. Raise InputError if there are no such hosts."""
    names = {host.name for host in fabric.hosts}
    if source == target or not {source, target} <= names:
        raise InputError(f"no paths from '{source}' to '{target}' in {fabric.name}: name two of its hosts")
    return [[path.ev, path.plane, path.t1, list(path.links)] for path in fabric.paths(source, target)]


def _shown_pairs(fabric: Fabric) -> list[tuple[Any, Any]]:
    """Return the pairs of hosts whose paths the page gets at the start; in a small fabric, all pairs."""
    if len(fabric.hosts) <= 8:
        return [(a, b) for a in fabric.hosts for b in fabric.hosts if a is not b]
    first, last = fabric.far_ends()
    return [(fabric.host(first), fabric.host(last)), (fabric.host(last), fabric.host(first))]


MOST_INCAST = 4


def pairs_of(fabric: Fabric, pattern: str, seed: int) -> tuple[tuple[str, str], ...]:
    """Return (source, destination) of each flow of a transport.

    For an all-reduce, return the flows of its ring. The connections for barriers are left out.
    """
    first, last = fabric.far_ends()
    names = [host.name for host in fabric.hosts]
    if pattern == "all-reduce":
        ring = _over_racks(fabric)
        return tuple(zip(ring, [*ring[1:], ring[0]], strict=True))
    if pattern == "stream" or len(names) < 3:
        return ((first, last),)
    if pattern == "incast":
        others = [name for name in names if name != last]
        return tuple((name, last) for name in others[:MOST_INCAST])
    return tuple(zip(names, _derangement(names, seed), strict=True))


def _over_racks(fabric: Fabric) -> list[str]:
    """Return all hosts in an order in which neighbours are in different racks, if possible."""
    seen: dict[int, int] = {}
    places = {}
    for host in fabric.hosts:
        places[host.name] = seen[host.rack] = seen.get(host.rack, -1) + 1
    return [h.name for h in sorted(fabric.hosts, key=lambda h: (places[h.name], h.rack))]


def _derangement(names: list[str], seed: int) -> list[str]:
    rng = random.Random(seed)
    for _ in itertools.repeat(None):
        shuffled = names[:]
        rng.shuffle(shuffled)
        if all(a != b for a, b in zip(names, shuffled, strict=True)):
            return shuffled
    raise AssertionError("unreachable")
