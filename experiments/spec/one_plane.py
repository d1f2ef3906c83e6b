"""The same fabric with all its bandwidth in one plane, for transports that know one path at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from experiments.spec.fault_schedule import FaultSpec
from testbed.topology_text import topology_text
from topologies import Fabric, build_fabric


def in_one_plane(fabric: Fabric) -> Fabric:
    """One plane whose links are as fast as those of all planes together, and as many T0, T1 and hosts.

    Links that differ from the others of their kind do so in plane 0 only.
    """
    if fabric.planes == 1:
        return fabric
    document = json.loads(topology_text(fabric))
    document["name"] = f"{fabric.name}-1plane"
    document["planes"] = 1
    links = document["links"]
    for kind in ("host", "fabric"):
        if kind in links:
            links[kind]["rate"] = _times(links[kind]["rate"], fabric.planes)
    kept = []
    for entry in links.pop("except", []):
        if any(re.match(r"p[1-9]\d*-", node) for node in entry["link"]):
            continue
        if "rate" in entry:
            entry["rate"] = _times(entry["rate"], fabric.planes)
        kept.append(entry)
    if kept:
        links["except"] = kept
    return build_fabric(json.dumps(document), f"{fabric.name} in one plane")


def _times(rate: str, planes: int) -> str:
    return f"{int(rate.split()[0]) * planes} bit/s"


def place_in_one_plane(place: str) -> str:
    """The name of a place, or a pattern, with every plane read as plane 0."""
    place = re.sub(r"\bp(\d+|\*|\?|\[[^\]]*\])-t", "p0-t", place)
    place = re.sub(r"^p(\d+|\*|\?|\[[^\]]*\])$", "p0", place)
    return re.sub(r"^(h[^:]*)-eth.*$", r"\1-eth0", place)


def specs_in_one_plane(specs: Sequence[FaultSpec]) -> tuple[FaultSpec, ...]:
    """The same faults for a fabric of one plane; places that are then the same strike once."""
    return tuple(
        replace(spec, where=tuple(dict.fromkeys(place_in_one_plane(w) for w in spec.where))) for spec in specs
    )
