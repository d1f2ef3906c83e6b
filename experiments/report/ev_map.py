"""The EV map: each EV's state over time, by plane and T1, a panel for each transport that retired any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mrclab.experiments.result.palette import new_figure
from mrclab.topologies.model import ev_fields

Floats = npt.NDArray[np.float64]
STATES = ("retired", "restored")
BINS = 300
ROW_INCHES = 0.12
LEAST_INCHES, MOST_INCHES = 0.9, 4.0
MOST_LABELS = 32


def draw_ev_map(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the picture of a result's first repetitions with retired EVs; nothing without any."""
    shown = {name: events for name, found in result["transports"].items() if (events := _first(found))}
    if not shown:
        return {}
    end_us = max(row[0] for events in shown.values() for kind in STATES for row in events[kind])
    begin_us = min(0.0, *(row[0] for events in shown.values() for row in events["retired"]))
    edges = np.linspace(begin_us, begin_us + 1.05 * max(end_us - begin_us, 1.0), BINS + 1)
    maps = {
        name: share_retired(events, edges, result["transports"][name]["routing"])
        for name, events in shown.items()
    }
    heights = [min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * len(rows))) for rows in maps.values()]
    figure = new_figure(7.2, 0.9 + sum(heights) + 0.35 * len(heights))
    panels = np.atleast_1d(figure.subplots(len(maps), 1, height_ratios=heights, sharex=True))
    for axes, (name, rows) in zip(panels, maps.items(), strict=True):
        _panel(axes, name, rows, edges / 1e3)
    panels[-1].set_xlabel("time since the measurement's start (ms)")
    bar = figure.colorbar(panels[-1].collections[0], ax=panels.tolist(), aspect=40, pad=0.01)
    bar.set_label("share out of use")
    figure.suptitle(f"{result['scenario']}: EVs out of use, first repetition", x=0.01, ha="left", fontsize=10)
    return {"ev-map": figure}


def _first(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((events for events in found.get("path_events", ()) if events["retired"]), None)


def ev_words(ev: int, routing: str) -> str:
    """Return an EV's plane and T1; its number if the routing is not by segment lists, which name both."""
    plane, uplink = ev_fields(ev)
    return f"plane {plane}, T1 {uplink}" if routing == "srv6" else f"EV {ev:#x}"


def share_retired(events: Mapping[str, Any], edges_us: Floats, routing: str) -> dict[str, Floats]:
    """Return, by the EVs' words, in which share of the queue pairs the EV is out of use in each bin.

    Queue pairs are those that lost, retired, replaced or restored anything. A retired EV is out until it is
    restored; one that replaces another is in use from then on.
    """
    pairs = {(int(row[1]), int(row[2])) for kind in ("lost", *STATES) for row in events[kind]}
    out: dict[str, Floats] = defaultdict(lambda: np.zeros(len(edges_us) - 1))
    for (_, _, ev), spans in sorted(_spans(events).items(), key=lambda item: item[0][2]):
        for begin_us, end_us in spans:
            inside = np.minimum(edges_us[1:], end_us) - np.maximum(edges_us[:-1], begin_us)
            out[ev_words(ev, routing)] += np.clip(inside, 0, None) / np.diff(edges_us) / max(1, len(pairs))
    return dict(out)


def _spans(events: Mapping[str, Any]) -> dict[tuple[int, int, int], list[tuple[float, float]]]:
    """Return from when to when (us) each EV of each rank's queue pair was out of use."""
    changes: list[tuple[float, bool, tuple[int, int, int]]] = []
    for kind in STATES:
        changes += [(row[0], kind == "retired", _key(row)) for row in events[kind]]
    changes += [(row[0], False, (int(row[1]), int(row[2]), int(row[4]))) for row in events["replaced"]]
    begun: dict[tuple[int, int, int], float] = {}
    found: dict[tuple[int, int, int], list[tuple[float, float]]] = defaultdict(list)
    for at_us, out, key in sorted(changes):
        if out:
            begun.setdefault(key, at_us)
        elif key in begun:
            found[key].append((begun.pop(key), at_us))
    for key, at_us in begun.items():
        found[key].append((at_us, np.inf))
    return found


def _key(row: Sequence[float]) -> tuple[int, int, int]:
    return int(row[1]), int(row[2]), int(row[3])


def _panel(axes: Axes, name: str, rows: Mapping[str, Floats], edges_ms: Floats) -> None:
    values = np.array(list(rows.values()))
    scale = Normalize(0, 1)
    axes.pcolormesh(edges_ms, np.arange(len(rows) + 1), values, cmap="Reds", norm=scale, rasterized=True)
    axes.invert_yaxis()
    step = -(-len(rows) // MOST_LABELS)
    axes.set_yticks(np.arange(0, len(rows), step) + 0.5, list(rows)[::step], fontsize=6)
    axes.set_title(name, loc="left", fontsize=9)
