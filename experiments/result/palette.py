"""Colours, font sizes and axes, the same for all pictures."""

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
    "svg.hashsalt": "mrclab",  # without this, ids in the SVG would be random
}


def new_figure(width: float = 7.2, height: float = 4.0) -> Figure:
    """Return an empty figure. Width and height are in inches."""
    return Figure(figsize=(width, height), layout="constrained")


class PlainLog(LogFormatter):
    """The labels of a logarithmic axis's minor ticks: plain numbers, but only at ticks with enough room."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of the tick at ``x``, or "" if there is no room for it."""
        return thousands(x) if super().__call__(x, pos) else ""


def plain_log(axis: Axis) -> None:
    """Label the ticks of a logarithmic axis with ``200`` and ``1,000`` instead of powers of ten."""
    axis.set_major_formatter(FuncFormatter(thousands))
    axis.set_minor_formatter(PlainLog())


def thousands(value: float, _place: int = 0) -> str:
    """Return the label of an axis's tick, such as ``10,000`` or ``0.1``."""
    text = f"{value:,.0f}" if abs(value) >= 1 or value == 0 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")
