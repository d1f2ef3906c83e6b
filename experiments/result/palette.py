"""Colours, type and axes that all pictures share."""

from __future__ import annotations

from typing import Any

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
GREY, DARK = "#999999", "#333333"
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "mrclab",  # the same result gives the same SVG
}


def new_figure(width: float = 7.2, height: float = 4.0) -> Figure:
    """Return an empty figure of that size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


class PlainLog(LogFormatter):
    """The marks of a logarithmic axis, as many as there is room for, written as those of other axes."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the text of the mark at ``x``; empty for one that is not written."""
        return thousands(x) if super().__call__(x, pos) else ""


def plain_log(axis: Axis) -> None:
    """Write the marks of a logarithmic axis as ``200`` and ``1,000``, not as powers."""
    axis.set_major_formatter(FuncFormatter(thousands))
    axis.set_minor_formatter(PlainLog())


def thousands(value: float, _place: int = 0) -> str:
    """Return a mark of an axis, written out: ``10,000``, ``0.1``."""
    text = f"{value:,.0f}" if abs(value) >= 1 or value == 0 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")
