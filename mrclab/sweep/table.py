"""The table and the pictures of a sweep. The same points always give the same bytes."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib as mpl
from rich import box
from rich.table import Table as RichTable

from mrclab.experiments.report.pictures import style_of
from mrclab.experiments.result.palette import STYLE, new_figure
from mrclab.linux.errors import InputError
from mrclab.sweep.spec import Plain, Point, SweepFile

Metrics = Mapping[int, Mapping[str, float]]
"""The metrics of each point, by the point's index."""
MOST_COLUMNS = 4


@dataclass(frozen=True, slots=True)
class Row:
    """One combination of the grid: its values, and each metric's mean, minimum and maximum over the seeds."""

    values: tuple[Plain, ...]
    seeds: int
    spread: Mapping[str, tuple[float, float, float]]


def names_of(sweep: SweepFile, metrics: Metrics) -> tuple[str, ...]:
    """Return the names of the metrics to show. Raise InputError if no point has a requested metric."""
    there = dict.fromkeys(name for place in sorted(metrics) for name in metrics[place])
    if missing := [name for name in sweep.metrics if there and name not in there]:
        raise InputError(f"no point has the metric '{missing[0]}' (there are {', '.join(there)})")
    return tuple(sweep.metrics) or tuple(there)


def rows_of(sweep: SweepFile, points: Sequence[Point], metrics: Metrics) -> list[Row]:
    """Return one row for each combination of values in the grid, in the order of the grid."""
    groups: dict[tuple[Plain, ...], list[Mapping[str, float]]] = {}
    for point in points:
        key = tuple(point.params[name] for name in sweep.grid)
        groups.setdefault(key, [])
        if point.place in metrics:
            groups[key].append(metrics[point.place])
    rows = []
    for key, found in groups.items():
        spread = {}
        for name in names_of(sweep, metrics):
            values = [one[name] for one in found if name in one]
            if values:
                spread[name] = (fmean(values), min(values), max(values))
        rows.append(Row(key, len(found), spread))
    return rows


def table_csv(sweep: SweepFile, rows: Sequence[Row]) -> str:
    """Return the table as CSV: the grid's keys, the number of seeds, and mean, min and max of each metric."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row.spread))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*sweep.grid, "seeds", *(f"{name}.{part}" for name in names for part in ("mean", "min", "max"))]
    )
    for row in rows:
        cells = [value for name in names for value in row.spread.get(name, ("", "", ""))]
        writer.writerow([*row.values, row.seeds, *cells])
    return text.getvalue()


def points_csv(points: Sequence[Point], metrics: Metrics) -> str:
    """Return one CSV line for every finished point: parameters, seed, metrics."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for point in points for key in point.params))
    names = list(dict.fromkeys(name for place in sorted(metrics) for name in metrics[place]))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "seed", *names])
    for point in points:
        if point.place in metrics:
            found = metrics[point.place]
            writer.writerow(
                [*(point.params[key] for key in keys), point.seed, *(found.get(name, "") for name in names)]
            )
    return text.getvalue()


def rendered(sweep: SweepFile, rows: Sequence[Row]) -> RichTable:
    """Return a terminal table of at most MOST_COLUMNS metrics, the first metrics of the sweep.

    The table has the mean and, for several seeds, the minimum and maximum.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.spread))[:MOST_COLUMNS]
    shown = RichTable(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in (*sweep.grid, "seeds", *names):
        shown.add_column(name, justify="right")
    for row in rows:
        cells = []
        for name in names:
            mean, least, most = row.spread.get(name, (None, None, None))
            if mean is None or least == most:
                cells.append("-" if mean is None else f"{mean:.4g}")
            else:
                cells.append(f"{mean:.4g} ({least:.4g} to {most:.4g})")
        shown.add_row(*(str(value) for value in row.values), str(row.seeds), *cells)
    return shown


MOST_LINES = 12


def draw(out: Path, sweep: SweepFile, rows: Sequence[Row]) -> list[str]:
    """Write <metric>.svg and .png for each metric; return the names. Return [] if no key has two values.

    The x axis is the numeric key with the most values. Without a numeric key, the x axis is the key with
    the most values.
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
    """Return a value's position on the x axis: the number itself, or the index of its label in ``marks``."""
    return float(marks.index(value) if marks else value)
