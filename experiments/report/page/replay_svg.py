"""One recovery in slow motion on the drawing of the fabric: a dot for each packet, along its path's links.

The drawing moves by itself (SVG's own animation), without a script.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mrclab.experiments.report.page.fabric_svg import Marks, draw_fabric, place_in
from mrclab.topologies import Fabric, Path

CYCLE_S = 12.0
"""How long the replay takes until it begins again."""
_LEAST_SHARE = 0.004
"""Of the cycle, for a packet's flight: a shorter one could not be seen."""


def draw_replay(fabric: Fabric, data: Mapping[str, Any], broken: str) -> tuple[str, float] | None:
    """Return the drawing, and how many times slower it moves than the recovery; None if there is no fabric.

    ``data`` is the recovery's entry from `mrclab.experiments.measure.pictures`, ``broken`` the link or
    switch.
    """
    source, target = data["ends"]
    names = {host.name for host in fabric.hosts}
    if not {source, target} <= names:
        return None
    paths = {path.ev: path for path in fabric.paths(source, target)}
    low, span = data["from_us"], data["to_us"] - data["from_us"]
    flights: dict[int, list[str]] = {}
    for sent_us, ev, arrived_us, again in data["flights"]:
        if ev in paths:
            begin = (sent_us - low) / span
            end = 1.0 if arrived_us is None else (arrived_us - low) / span
            dot = _dot(fabric, paths[ev], begin, end, arrived_us is None, bool(again), broken)
            flights.setdefault(paths[ev].plane, []).append(dot)
    marks = Marks({broken: 1}, broken, (source, target), tuple(paths.values()))
    drawn = draw_fabric(fabric, marks, {plane: "".join(dots) for plane, dots in flights.items()})
    return drawn, CYCLE_S * 1e6 / span


def _dot(fabric: Fabric, path: Path, begin: float, end: float, lost: bool, again: bool, broken: str) -> str:
    """Return a packet's dot: it moves from ``begin`` to ``end`` (shares of the cycle); a lost one stops."""
    nodes = _nodes(fabric, path)
    if lost:
        nodes = _until(fabric, path, nodes, broken)
        end = begin + 0.03
    end = min(1.0, max(end, begin + _LEAST_SHARE))
    begin = max(0.0, min(begin, end - _LEAST_SHARE / 2))
    look = "lost" if lost else "again" if again else "packet"
    way = "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in (place_in(fabric, node) for node in nodes))
    times = f"0;{begin:.4f};{end:.4f};1"
    stays = min(1.0, end + (0.12 if lost else 0.0))
    seen = f"0;{begin:.4f};{stays:.4f}"
    each = f'dur="{CYCLE_S:g}s" repeatCount="indefinite"'
    return (
        f'<circle r="{4.5 if lost else 3.5}" class="flight {look}" opacity="0">'
        f'<animateMotion {each} calcMode="linear" keyPoints="0;0;1;1" keyTimes="{times}" path="{way}"/>'
        f'<animate attributeName="opacity" {each} calcMode="discrete" values="0;1;0" keyTimes="{seen}"/>'
        "</circle>"
    )


def _nodes(fabric: Fabric, path: Path) -> list[str]:
    """Return the hosts and switches of a path, in order."""
    nodes = [path.src]
    for name in path.links:
        a, b = name.split(":")
        nodes.append(b if a == nodes[-1] else a)
    return nodes


def _until(fabric: Fabric, path: Path, nodes: list[str], broken: str) -> list[str]:
    """Return the part of a path that a lost packet passed: up to the broken place."""
    if broken in nodes:
        return nodes[: nodes.index(broken) + 1]
    if broken in path.links:
        return nodes[: path.links.index(broken) + 2]
    return nodes
