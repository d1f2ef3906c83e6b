"""Colours, type and axes that all pictures share."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

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


def thousands(value: float, _place: int = 0) -> str:
    """Return a mark of an axis, written out: ``10,000``, ``0.1``."""
    text = f"{value:,.0f}" if abs(value) >= 1 or value == 0 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")
