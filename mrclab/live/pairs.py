"""Who sends to whom in each pattern of traffic. Pure."""

from __future__ import annotations

import itertools
import random

from mrclab.topologies import Fabric

MOST_INCAST = 4


def pairs_of(fabric: Fabric, pattern: str, seed: int) -> tuple[tuple[str, str], ...]:
    """Return (source, destination) of each flow of a transport.

    The flows of an all-reduce are those of its ring; barriers use more connections.
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
    """Return all hosts in an order in which neighbours are in different racks, if that is possible."""
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
