"""A picture for each metric of a sweep: over the first numeric key of the grid, a line for the other keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from experiments.report.palette import STYLE, new_figure
from experiments.report.pictures import style_of
from mrclab.sweep.spec import SweepFile
from mrclab.sweep.table import Row

MOST_LINES = 12


def draw(out: Path, sweep: SweepFile, rows: Sequence[Row]) -> list[str]:
    """Write <metric>.svg and .png for each metric; return the names. None where no key is numeric."""
    keys = list(sweep.grid)
    numeric = [
        place
        for place, values in enumerate(sweep.grid.values())
        if len(values) > 1 and all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    ]
    if not numeric:
        return []
    along = max(numeric, key=lambda place: len(sweep.grid[keys[place]]))
    names = list(dict.fromkeys(name for row in rows for name in row.spread))
    drawn = []
    for name in names:
        lines: dict[str, list[tuple[float, tuple[float, float, float]]]] = {}
        for row in rows:
            if name in row.spread:
                others = [f"{key} {row.values[place]}" for place, key in enumerate(keys) if place != along]
                lines.setdefault(", ".join(others), []).append((float(row.values[along]), row.spread[name]))
        with mpl.rc_context(STYLE):
            figure = new_figure(7.2, 3.6)
            axes = figure.subplots()
            for place, (label, points) in enumerate(list(lines.items())[:MOST_LINES]):
                points.sort()
                x = [at for at, _ in points]
                mean, least, most = zip(*(spread for _, spread in points), strict=True)
                style = style_of(place)
                axes.plot(x, mean, marker="o", markersize=3, linewidth=1.5, label=label or None, **style)
                axes.fill_between(x, least, most, alpha=0.15, color=style["color"])
            positive = sorted({at for points in lines.values() for at, _ in points if at > 0})
            if len(positive) > 2 and positive[-1] > 50 * positive[0]:
                axes.set_xscale("symlog", linthresh=positive[0])
            axes.set_xlabel(keys[along])
            axes.set_ylabel(name)
            axes.set_title("mean, and from least to most over the seeds", fontsize=8)
            if any(lines):
                axes.legend()
            stem = "".join(c if c.isalnum() or c in "-_" else "-" for c in name)
            for ending in ("svg", "png"):
                figure.savefig(out / f"{stem}.{ending}", metadata={"Date": None} if ending == "svg" else None)
        drawn.append(stem)
    return drawn
