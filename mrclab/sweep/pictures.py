"""A picture for each metric of a sweep: over one key of the grid, a line for each value of the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

from mrclab.experiments.report.pictures import style_of
from mrclab.experiments.result.palette import STYLE, new_figure
from mrclab.sweep.spec import Plain, SweepFile
from mrclab.sweep.table import Row

MOST_LINES = 12


def draw(out: Path, sweep: SweepFile, rows: Sequence[Row]) -> list[str]:
    """Write <metric>.svg and .png for each metric; return the names. There are none if no key has two values.

    They are drawn over the numeric key with the most values, or else over any key with the most.
    """
    keys = list(sweep.grid)
    varied = [place for place, key in enumerate(keys) if len(sweep.grid[key]) > 1]
    if not varied:
        return []
    numeric = [place for place in varied if _numeric(sweep.grid[keys[place]])]
    along = max(numeric or varied, key=lambda place: len(sweep.grid[keys[place]]))
    marks = [] if numeric else sweep.grid[keys[along]]
    names = list(dict.fromkeys(name for row in rows for name in row.spread))
    drawn = []
    for name in names:
        lines: dict[str, list[tuple[float, tuple[float, float, float]]]] = {}
        for row in rows:
            if name in row.spread:
                others = [f"{key} {row.values[place]}" for place, key in enumerate(keys) if place != along]
                lines.setdefault(", ".join(others), []).append(
                    (_at(row.values[along], marks), row.spread[name])
                )
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
            if not marks and len(positive) > 2 and positive[-1] > 50 * positive[0]:
                axes.set_xscale("symlog", linthresh=positive[0])
            if marks:
                axes.set_xticks(range(len(marks)), [str(mark) for mark in marks])
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


def _numeric(values: Sequence[Plain]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _at(value: Plain, marks: Sequence[Plain]) -> float:
    """Return the position of a value on the axis: itself, or its number among the marks."""
    return float(marks.index(value) if marks else value)
