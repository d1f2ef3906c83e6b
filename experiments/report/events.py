"""Events over time: the rows of the page's event browser, and a picture of each EV's state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
    """Draw when EVs were out of use, in each transport's first repetition with retired EVs.

    Return {} if no transport retired an EV.
    """
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
    """Return a name for an EV: with SRv6 routing its plane and T1, otherwise its number."""
    plane, uplink = ev_fields(ev)
    return f"plane {plane}, T1 {uplink}" if routing == "srv6" else f"EV {ev:#x}"


def share_retired(events: Mapping[str, Any], edges_us: Floats, routing: str) -> dict[str, Floats]:
    """Return by EV name, for each time bin, the share of queue pairs that do not use the EV.

    Only queue pairs with losses or with retired or restored EVs count. A retired EV is out of use until it is
    restored, or until it replaces another EV.
    """
    pairs = {(int(row[1]), int(row[2])) for kind in ("lost", *STATES) for row in events[kind]}
    out: dict[str, Floats] = defaultdict(lambda: np.zeros(len(edges_us) - 1))
    for (_, _, ev), spans in sorted(_spans(events).items(), key=lambda item: item[0][2]):
        for begin_us, end_us in spans:
            inside = np.minimum(edges_us[1:], end_us) - np.maximum(edges_us[:-1], begin_us)
            out[ev_words(ev, routing)] += np.clip(inside, 0, None) / np.diff(edges_us) / max(1, len(pairs))
    return dict(out)


def _spans(events: Mapping[str, Any]) -> dict[tuple[int, int, int], list[tuple[float, float]]]:
    """Return for each (rank, queue pair, EV) when the EV was out of use: (beginning, end) in us."""
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


KINDS = {
    "fault": "faults",
    "repair": "repairs",
    "lost": "losses",
    "retired": "EVs retired",
    "restored": "EVs restored",
}
"""The kinds of events, and their names in the filter of the event browser."""
TOGETHER_US = 1000.0
"""If the time between two losses of one EV is at most this, us, the losses share a row."""
MOST_ROWS = 400
PICTURES = {
    "fault": ("recovery", "delivered", "training-loss"),
    "repair": ("delivered", "training-loss"),
    "lost": ("recovery", "delivered-rate", "delivered"),
    "retired": ("ev-map", "ev-activity"),
    "restored": ("ev-map", "ev-activity"),
}
"""For each kind of event, the pictures that can show it. The best picture comes first."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """One row of the event browser: an event, or several losses."""

    at_us: float
    kind: str
    transport: str
    repetition: int
    text: str


def event_rows(result: Mapping[str, Any]) -> tuple[list[EventRow], int]:
    """Return the first ``MOST_ROWS`` rows, by repetition and time, and the number of omitted rows."""
    found = [
        row
        for name, part in result["transports"].items()
        for row in (*_faults(name, part), *_losses(name, part), *_states(name, part))
    ]
    found.sort(key=lambda row: (row.repetition, row.at_us))
    return found[:MOST_ROWS], max(0, len(found) - MOST_ROWS)


def _faults(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    for fault in part.get("faults", ()):
        words = f"{fault['kind']} at {fault['where']}"
        yield EventRow(fault["at_us"], "fault", name, fault["repetition"], words)
        until_ns = fault.get("restore_before_ns")
        if until_ns is not None:
            middle_ns = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
            until_us = fault["at_us"] + (until_ns - middle_ns) / 1e3
            yield EventRow(until_us, "repair", name, fault["repetition"], f"{words}, undone")


def _losses(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    place = partial(ev_words, routing=part["routing"])
    for events in part.get("path_events", ()):
        groups: dict[int, list[float]] = {}
        for row in events["lost"]:
            at_us, ev = row[0], int(row[3])
            if ev in groups and at_us - groups[ev][-1] > TOGETHER_US:
                yield _lost(name, events["repetition"], place(ev), groups.pop(ev))
            groups.setdefault(ev, []).append(at_us)
        for ev, times_us in groups.items():
            yield _lost(name, events["repetition"], place(ev), times_us)


def _lost(name: str, repetition: int, place: str, times_us: list[float]) -> EventRow:
    count = len(times_us)
    words = "1 packet" if count == 1 else f"{count:,} packets in {times_us[-1] - times_us[0]:,.0f} us"
    return EventRow(times_us[0], "lost", name, repetition, f"{words}, {place}")


def _states(name: str, part: Mapping[str, Any]) -> Iterator[EventRow]:
    place = partial(ev_words, routing=part["routing"])
    for events in part.get("path_events", ()):
        for kind in STATES:
            for row in events[kind]:
                words = f"{place(int(row[3]))}, rank {int(row[1])}, queue pair {int(row[2])}"
                yield EventRow(row[0], kind, name, events["repetition"], words)
