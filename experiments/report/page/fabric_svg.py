"""A drawing of the fabric with its broken places in red, and an animation of one recovery (the replay).

In the replay, each packet is a dot that moves along the links of its path, in slow motion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from mrclab.topologies import Fabric, Link, Path

_PANEL_WIDTH, _DENSE_WIDTH = 230, 640
"""The width of a plane's drawing, with few nodes and with many."""
_ROWS = {"t1": 46, "t0": 120, "host": 178}
_THREE_TIERS = 74
"""The height of the row of T2s. In a fabric with three tiers, the other rows move down by this height."""
_PANEL_HEIGHT = 216
_NODE = 20
_MANY = 12  # rows with more nodes than this have no labels


@dataclass(frozen=True)
class Marks:
    """The marks that are drawn on the fabric.

    ``broken`` has the number of faults for each link or switch by name. ``main`` is the broken place that the
    page's pictures show. ``ends`` are the sending and receiving hosts, ``paths`` are the paths in use.
    """

    broken: Mapping[str, int] = field(default_factory=dict)
    main: str | None = None
    ends: tuple[str, ...] = ()
    paths: Sequence[Path] = ()


def draw_fabric(fabric: Fabric, marks: Marks, over: Mapping[int, str] | None = None) -> str:
    """Return the fabric as a ``<div>`` with an ``<svg>`` for each plane, and a title for screen readers.

    ``over`` has SVG elements that are added to a plane, in the coordinates of `place_in`. If there are many
    planes, only planes with a broken place are drawn, because all planes are built alike.
    """
    shown = _planes(fabric, marks)
    dense = _widest(fabric) > _MANY
    width = _DENSE_WIDTH if dense else _PANEL_WIDTH
    hidden = fabric.planes - len(shown)
    counts = f"{fabric.planes} planes, {len(fabric.switches)} switches, {len(fabric.hosts)} hosts"
    title = f"Fabric {fabric.name}: {counts}"
    if marks.main:
        title += f"; broken: {marks.main}"
    parts = [f'<div class="fabric{" dense" if dense else ""}" role="img" aria-label="{escape(title)}">']
    for plane in shown:
        box = f'viewBox="0 0 {width} {_height(fabric)}" xmlns="http://www.w3.org/2000/svg"'
        parts.append(f'<svg class="fabric" {box}>')
        parts += [f"<title>{escape(title)}</title>", *_panel(fabric, plane, width, marks)]
        parts += [(over or {}).get(plane, ""), "</svg>"]
    if hidden:
        parts.append(f"<p>and {hidden} more plane{'s' if hidden > 1 else ''}, built alike</p>")
    return "".join([*parts, "</div>"])


def _widest(fabric: Fabric) -> int:
    return max(
        len(fabric.hosts),
        *(sum(s.plane == 0 and s.tier == tier for s in fabric.switches) for tier in ("t0", "t1", "t2")),
    )


def _rows(fabric: Fabric) -> dict[str, int]:
    """Return the y coordinate of each row of nodes, counted from the top of the drawing."""
    if fabric.pods == 1:
        return _ROWS
    return {"t2": _ROWS["t1"], **{row: y + _THREE_TIERS for row, y in _ROWS.items()}}


def _height(fabric: Fabric) -> int:
    return _PANEL_HEIGHT + (_THREE_TIERS if fabric.pods > 1 else 0)


def _planes(fabric: Fabric, marks: Marks) -> list[int]:
    """Return the planes to draw. If there are too many, prefer planes with a broken place."""
    most = 4 if _widest(fabric) <= _MANY else 1
    if fabric.planes <= most:
        return list(range(fabric.planes))
    hit = [link.plane for link in fabric.links if link.name in marks.broken]
    hit += [switch.plane for switch in fabric.switches if switch.name in marks.broken]
    main = [link.plane for link in fabric.links if link.name == marks.main]
    main += [switch.plane for switch in fabric.switches if switch.name == marks.main]
    order = dict.fromkeys([*main, *sorted(set(hit)), *range(fabric.planes)])
    return sorted(list(order)[:most])


def place_in(fabric: Fabric, node: str) -> tuple[float, float]:
    """Return the position of a host or switch in the drawing of its plane."""
    width = _DENSE_WIDTH if _widest(fabric) > _MANY else _PANEL_WIDTH
    names = [host.name for host in fabric.hosts]
    if node in names:
        return width * (names.index(node) + 0.5) / len(names), _rows(fabric)["host"]
    own = fabric.switch(node)
    row = [s.name for s in fabric.switches if (s.plane, s.tier) == (own.plane, own.tier)]
    return width * (row.index(node) + 0.5) / len(row), _rows(fabric)[own.tier]


def _panel(fabric: Fabric, plane: int, width: float, marks: Marks) -> list[str]:
    rows = _rows(fabric)
    names: dict[str, list[str]] = {tier: [] for tier in rows}
    names["host"] = [host.name for host in fabric.hosts]
    for switch in fabric.switches:
        if switch.plane == plane:
            names[switch.tier].append(switch.name)
    place = {
        name: (width * (index + 0.5) / len(row), rows[tier])
        for tier, row in names.items()
        for index, name in enumerate(row)
    }
    on_path = {link for path in marks.paths if path.plane == plane for link in path.links}
    links = [link for link in fabric.links if link.plane == plane]
    links.sort(key=lambda link: (link.name in marks.broken, link.name in on_path))
    parts = [
        f'<rect width="{width:.1f}" height="{_height(fabric)}" rx="8" class="panel"/>',
        f'<text x="10" y="19" class="plane">plane {plane}</text>',
    ]
    parts += [_line(link, place, marks, link.name in on_path) for link in links]
    for tier, row in names.items():
        labelled = len(row) <= _MANY
        room = width / max(len(row), 1)
        parts += [_node(name, tier, place[name], min(room * 0.8, 46), marks, labelled) for name in row]
    return parts


def _line(link: Link, place: Mapping[str, tuple[float, float]], marks: Marks, used: bool) -> str:
    (x1, y1), (x2, y2) = place[link.a.node], place[link.b.node]
    times = marks.broken.get(link.name, 0)
    main = link.name == marks.main
    look = "hit" if times else "used" if used else "plain"
    width = 3.2 if main else 1.8 if times else 1.1 if used else 0.7
    dash = "" if not times or main else ' stroke-dasharray="5 3"'
    opacity = 1.0 if times or not used else 0.55
    said = f"{link.name}, broken {times} time{'s' if times > 1 else ''}" if times else link.name
    line = (
        f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" class="{look}" stroke-width="{width}"'
        f' opacity="{opacity}"{dash}><title>{escape(said)}</title></line>'
    )
    if main:
        x, y = (x1 + x2) / 2, (y1 + y2) / 2
        line += (
            f'<g transform="translate({x:.1f} {y:.1f})">'
            '<circle r="9" class="cross" stroke-width="2"/>'
            '<path d="M-4-4 4 4M4-4-4 4" class="cross" stroke-width="2.4"/></g>'
        )
    return line


def _node(name: str, tier: str, at: tuple[float, float], width: float, marks: Marks, labelled: bool) -> str:
    x, y = at
    broken, end = name in marks.broken, name in marks.ends
    look = "hit" if broken else "end" if end else ""
    text = ""
    if labelled:
        short = name.split("-", 1)[1].upper().replace("-", " ") if tier != "host" else name
        text = f'<text x="{x:.1f}" y="{y + 4}" class="node">{escape(short)}</text>'
    return (
        f"<g><title>{escape(name)}</title>"
        f'<rect x="{x - width / 2:.1f}" y="{y - _NODE / 2}" width="{width:.1f}"'
        f' height="{_NODE}" rx="{10 if tier == "host" else 3}" class="node-box {look}"/>{text}</g>'
    )


CYCLE_S = 12.0
"""The length of the replay's cycle, after which the replay begins again."""
_LEAST_SHARE = 0.004
"""The shortest time in which a dot moves, as a share of the cycle. A faster dot could not be seen."""


def draw_replay(fabric: Fabric, data: Mapping[str, Any], broken: str) -> tuple[str, float] | None:
    """Return a drawing that replays a recovery, and how many times slower the drawing is than the recovery.

    ``data`` comes from `mrclab.experiments.measure.pictures`. ``broken`` is the broken link or switch. Return
    None if the fabric lacks a host of the recovery.
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
    """Return a packet's dot, which moves from ``begin`` to ``end`` (shares of the replay's cycle)."""
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
    nodes = [path.src]
    for name in path.links:
        a, b = name.split(":")
        nodes.append(b if a == nodes[-1] else a)
    return nodes


def _until(fabric: Fabric, path: Path, nodes: list[str], broken: str) -> list[str]:
    """Return the nodes of a path up to the broken place: the part of the path that a lost packet passed."""
    if broken in nodes:
        return nodes[: nodes.index(broken) + 1]
    if broken in path.links:
        return nodes[: path.links.index(broken) + 2]
    return nodes
