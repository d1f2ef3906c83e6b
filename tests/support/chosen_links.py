"""The links between two hosts, and a random choice among them for trials."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mrclab.topologies import Fabric


def fabric_links_between(fabric: Fabric, src: str, dst: str) -> tuple[str, ...]:
    """Return the T0-T1 links on any path from one host to the other, in the fabric's order."""
    on_path = {link for path in fabric.paths(src, dst) for link in path.links}
    return tuple(link.name for link in fabric.links if link.kind == "fabric" and link.name in on_path)


def choose_links(links: Sequence[str], trials: int, seed: int) -> tuple[str, ...]:
    """Return the link that each trial breaks. Every link is drawn once before any link is drawn again.

    Raise ValueError if there is no link to choose from.
    """
    if not links:
        raise ValueError("no T0-T1 link lies between the two hosts: put them in different racks")
    chooser = random.Random(seed)
    chosen: list[str] = []
    while len(chosen) < trials:
        chosen += chooser.sample(list(links), len(links))
    return tuple(chosen[:trials])
