"""The page of a scale study: one HTML file with SVG pictures, which needs no network."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from io import StringIO
from math import exp, lgamma, log
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mrclab.experiments.report.page.render import drawn, inline_svg, render
from mrclab.experiments.result.palette import BLUE, GREEN, ORANGE, PURPLE, RED, STYLE, new_figure, thousands
from mrclab.scale.fabric import blast_radius
from mrclab.scale.figures import Curve
from mrclab.scale.study import Answer, cost_curves

INK = "#1d2431"
"""The colour of lines and text. The page replaces this colour, to suit a light and a dark theme."""
_LINES = (BLUE, ORANGE, GREEN, PURPLE, RED)
_STYLE: dict[Any, Any] = {
    **STYLE,
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


def pictures_of(found: Answer) -> dict[str, str]:
    """Return the pictures for which the study has data, as SVG elements by name."""
    with mpl.rc_context(_STYLE):
        drawn = {name: (figure, says) for name, (figure, says) in _drawn(found).items()}
        return {name: _svg(figure, name, says) for name, (figure, says) in drawn.items()}


def _drawn(found: Answer) -> Mapping[str, tuple[Figure, str]]:
    drawn: dict[str, tuple[Figure, str]] = {}
    if found.fabrics:
        drawn["cost"] = (_cost(found), "cost of a NIC's share against NICs, a line for each number of planes")
        drawn["blast"] = (_blast(found), "share of bandwidth that each NIC loses by kind of failure")
    if found.studies:
        drawn["at-once"] = (_at_once(found), "links out at once over a job's life, drawn and in closed form")
        drawn["goodput"] = (_goodput(found), "goodput of each drawn life")
    if found.figures:
        for curve in found.figures.curves:
            drawn[f"figure-{curve.figure}"] = (_curve(curve), f"figure {curve.figure}: model and paper")
    if found.shares:
        drawn["shares"] = (_shares(found), "share of bandwidth lost by mean and slowest flow, by dead links")
    return drawn


def _svg(figure: Figure, name: str, says: str) -> str:
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    return inline_svg(text.getvalue(), name, says).replace(INK, "currentColor")


def _cost(found: Answer) -> Figure:
    parts = found.question.parts
    most = max(found.question.nics * 2, 2**17)
    sizes = sorted({round(2 ** (power / 4)) for power in range(40, int(4 * np.log2(most)) + 1)})
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for colour, (name, points) in zip(_LINES, cost_curves(parts, sizes).items(), strict=True):
        nics, cost = zip(*points, strict=True)
        axes.plot(nics, cost, color=colour, label=name, linewidth=1.6)
    axes.axvline(found.question.nics, color=INK, linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("NICs (logarithmic); a step up is a further tier")
    axes.set_ylabel("cost of a NIC's share")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(thousands))
    axes.legend(ncols=3, loc="lower right")
    return figure


def _blast(found: Answer) -> Figure:
    kinds = ["NIC-T0 link", "T0-T1 link", "T0", "T1"]
    figure = new_figure(7.2, 3.2)
    axes = figure.subplots()
    shown = found.fabrics[:2]
    for place, (built, colour) in enumerate(zip(shown, (BLUE, ORANGE), strict=False)):
        rows = {row.kind: row.of_each for row in blast_radius(built)}
        values = [100 * rows.get(kind, np.nan) for kind in kinds]
        bars = axes.barh(
            np.arange(len(kinds)) + 0.2 - 0.4 * place, values, 0.38, color=colour, label=built.design.name
        )
        axes.bar_label(bars, [f"{value:.3g} %" for value in values], padding=3, fontsize=8)
    axes.set_yticks(np.arange(len(kinds)), kinds)
    axes.set_xscale("log")
    axes.set_xlim(0.05, 400)
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.invert_yaxis()
    axes.set_xlabel("share of bandwidth that each NIC below loses to one failure (%, logarithmic)")
    axes.legend(loc="lower right")
    return figure


def _at_once(found: Answer) -> Figure:
    figure = new_figure(7.2, 3.2)
    axes = figure.subplots()
    for study, colour in zip(found.studies, _LINES, strict=False):
        counts = {count.kind.name: count for count in study.counts}
        mean = sum(
            counts[name].out_expected for name in ("fabric_link", "fabric_link_flap") if name in counts
        )
        out = np.arange(round(mean + 6 * mean**0.5 + 6))
        # The number of failed links and the number of flapping links are independent Poisson variables. So
        # their sum is a Poisson variable, too.
        closed = (
            [exp(k * log(mean) - mean - lgamma(k + 1)) for k in out]
            if mean
            else [1.0, *[0.0] * (len(out) - 1)]
        )
        axes.plot(out, closed, color=colour, linewidth=1.2, linestyle="--")
        shares = study.links_out
        axes.bar(
            np.arange(len(shares)),
            shares,
            0.9,
            color=colour,
            alpha=0.45,
            label=f"{study.name}, {study.built.design.name}",
        )
    axes.set_xlabel("links between switches that are out at once; dashed: Poisson")
    axes.set_ylabel("share of the time")
    axes.legend()
    return figure


def _goodput(found: Answer) -> Figure:
    figure = new_figure(7.2, 2.6)
    axes = figure.subplots()
    rows = [
        (f"{study.name}, {what}", values, colour)
        for study, colour in zip(found.studies, _LINES, strict=False)
        for what, values in (("network alone", study.goodput), ("with GPUs", study.goodput_with_others))
    ]
    for place, (_, values, colour) in enumerate(rows):
        axes.plot(100 * values, np.full(len(values), place), "|", color=colour, markersize=16)
    axes.set_yticks(np.arange(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("goodput of the job (%), a mark for each life")
    return figure


def _curve(curve: Curve) -> Figure:
    figure = new_figure(7.2, 3.0)
    axes = figure.subplots()
    axes.plot(curve.minutes, curve.model, color=BLUE, linewidth=1.6, label="model")
    x, y = zip(*curve.paper, strict=True)
    axes.plot(x, y, "o", color=RED, markersize=5, label="paper, production")
    if max(y) > 100 * min(y):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set_xlabel("minutes")
    axes.set_ylabel(curve.what)
    axes.set_title(f"figure {curve.figure}")
    axes.legend()
    return figure


def _shares(found: Answer) -> Figure:
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    patterns = list(dict.fromkeys(row.pattern for row in found.shares))
    for pattern, colour in zip(patterns, _LINES, strict=False):
        rows = [row for row in found.shares if row.pattern == pattern]
        x = np.array([max(row.dead, 0.5) for row in rows])
        for what, style in (("mean", "-"), ("least", "--")):
            lost = [100 * (1 - getattr(row, what)) for row in rows]
            axes.plot(
                x,
                np.maximum(lost, 1e-4),
                style,
                marker="o",
                markersize=3,
                color=colour,
                linewidth=1.4,
                label=pattern if what == "mean" else None,
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(thousands))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: "0" if value == 0.5 else f"{value:,.0f}"))
    axes.set_xticks([0.5, *(10**power for power in range(6) if 10**power <= max(x))])
    axes.set_xlabel("dead T0-T1 links (logarithmic)")
    axes.set_ylabel("share of a flow's rate lost (%)\nsolid: mean, dashed: slowest")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.22), ncols=2)
    return figure


_CAPTIONS = {
    "cost": "Switches, modules and cables over NICs. With more planes a chip has more ports, so "
    "that fewer tiers reach as far.",
    "blast": "The first fabric sprays over its planes; the second is conventional.",
    "at-once": "Bars: the drawn lives. Dashed: the closed form.",
    "goodput": "Each mark is one drawn life of the job.",
    "figure-4": "Losses in a second at the start of a job on a fabric with dead paths, of one NIC in four.",
    "figure-6": "A module at a T0 flaps, and takes the links of four NICs with it.",
    "shares": "MRC spreads over the links that work; flows by ECMP collide even on a whole fabric.",
}
_PLACES = {
    "fabrics": ("cost",),
    "job": ("goodput", "at-once"),
    "figures": ("figure-4", "figure-6"),
    "shares": ("shares",),
}


def write_page(out: Path, found: Answer) -> None:
    """Write report.html."""
    pictures = pictures_of(found)
    question = found.question
    sections: list[dict[str, Any]] = []
    blast_shown = False
    for table in found.tables:
        names = [name for name in _PLACES.get(table.name, ()) if name in pictures]
        if table.name.startswith("blast-") and "blast" in pictures:
            names, blast_shown = [] if blast_shown else ["blast"], True
        sections.append(
            {
                "table": table,
                "pictures": [
                    {"svg": drawn(pictures[name]), "caption": _CAPTIONS.get(name, "")} for name in names
                ],
            }
        )
    context = {
        "heading": f"{question.nics:,} NICs on {question.planes} planes",
        "parts": question.parts.name,
        "job": f"{question.job_nics:,} GPUs for {question.days:g} days",
        "command": shlex.join(["mrclab", *sys.argv[1:]]),
        "seed": question.seed,
        "sections": sections,
        "doubtful": False,
    }
    (out / "report.html").write_text(render("scale.html", context), encoding="utf-8", newline="\n")
