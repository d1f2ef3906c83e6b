"""Queues over links and time as a heat map, a panel for each transport (`measure: {queues: true}`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from mrclab.experiments.result.palette import new_figure

ROW_INCHES = 0.1
LEAST_INCHES, MOST_INCHES = 0.8, 3.2
MOST_LABELS = 32


def queues_of(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the readings of a transport's first repetition that has any."""
    rows = (row["queues"] for row in found.get("details", ()) if row.get("queues", {}).get("wait_ns"))
    return next(rows, None)


def draw_queues(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the picture of a result's queues, if it has readings."""
    readings = {n: q for n, found in result["transports"].items() if (q := queues_of(found)) is not None}
    if not readings:
        return {}
    heights = [min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * len(q["wait_ns"]))) for q in readings.values()]
    figure = new_figure(7.2, 0.9 + sum(heights) + 0.35 * len(heights))
    panels = np.atleast_1d(figure.subplots(len(readings), 1, height_ratios=heights))
    longest = max(max(max(waits) for waits in q["wait_ns"].values()) for q in readings.values())
    scale = Normalize(0, longest / 1e3)
    for axes, (name, found) in zip(panels, readings.items(), strict=True):
        _panel(axes, name, found, scale)
    panels[-1].set_xlabel("time since the measurement's start (us)")
    bar = figure.colorbar(panels[-1].collections[0], ax=panels.tolist(), aspect=40, pad=0.01)
    bar.set_label("wait in the queue (us)")
    figure.suptitle(f"{result['scenario']}: queues of links", x=0.01, ha="left", fontsize=10)
    return {"queues": figure}


def _panel(axes: Axes, name: str, found: Mapping[str, Any], scale: Normalize) -> None:
    waits = found["wait_ns"]
    values = np.array(list(waits.values()), dtype=float) / 1e3
    edges = found["start_us"] + np.arange(values.shape[1] + 1) * found["bin_us"]
    axes.pcolormesh(edges, np.arange(len(waits) + 1), values, cmap="viridis", norm=scale, rasterized=True)
    axes.invert_yaxis()
    step = -(-len(waits) // MOST_LABELS)
    axes.set_yticks(np.arange(0, len(waits), step) + 0.5, list(waits)[::step], fontsize=5)
    axes.set_title(name, loc="left", fontsize=9)
