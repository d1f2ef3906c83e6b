"""The pictures of a comparison: delivered bytes around the faults, and each metric's spread by transport."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from experiments.report.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    STYLE,
    Picture,
    new_figure,
    save_picture,
)

_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56B4E9", "#000000", "#F0E442", GREY)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (3, 1, 1, 1)))
SPREAD = (
    "detect_us",
    "switch_us",
    "whole_us",
    "gap_us",
    "latency_us",
    "step_us",
    "stalled_us",
)  # in this order, as far as there are
_NAMES = {
    "detect_us": "time until the transport, or its routing, noticed a fault (\N{MICRO SIGN}s)",
    "switch_us": "time until it had left what the fault broke (\N{MICRO SIGN}s)",
    "whole_us": "time until a fault's last late message was delivered (\N{MICRO SIGN}s)",
    "gap_us": "longest time without a delivery after a fault (\N{MICRO SIGN}s)",
    "latency_us": "message latency (\N{MICRO SIGN}s)",
    "step_us": "training step (\N{MICRO SIGN}s)",
    "stalled_us": "communication beyond the usual in a step (\N{MICRO SIGN}s)",
}
_POINTS = 2000


def draw_comparison(directory: Path, result: Mapping[str, Any]) -> tuple[Picture, ...]:
    """Draws what a result has the data for into the directory, and says which pictures these are."""
    transports: Mapping[str, Any] = result["transports"]
    pictures = []
    with mpl.rc_context(STYLE):
        if any(series["bytes"] for found in transports.values() for series in found["series"]):
            pictures.append(save_picture(directory, "delivered", draw_delivered(result)))
        for metric in SPREAD:
            values = {name: pooled(found, metric) for name, found in transports.items()}
            if any(values.values()):
                pictures.append(save_picture(directory, f"cdf-{metric}", draw_spread(metric, values)))
        if sizes := sizes_of(transports):
            pictures.append(save_picture(directory, "busbw", draw_bandwidth(transports, sizes)))
    return tuple(pictures)


def pooled(found: Mapping[str, Any], metric: str) -> list[float]:
    """A transport's values of a metric, those of all repetitions together."""
    return [value for sample in found["samples"] for value in sample["metrics"].get(metric, ())]


def style_of(number: int) -> dict[str, Any]:
    """Colour and dashes of the n-th transport, the same in every picture."""
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _DASHES[number // 3 % len(_DASHES)]}


def draw_delivered(result: Mapping[str, Any]) -> Figure:
    """Delivered payload over the run, a panel a transport: each repetition thin, their mean thick."""
    transports = result["transports"]
    figure = new_figure(7.2, 1.0 + 1.15 * len(transports))
    panels = np.atleast_1d(figure.subplots(len(transports), 1, sharex=True, sharey=True))
    for number, (axes, (name, found)) in enumerate(zip(panels, transports.items(), strict=True)):
        _panel(axes, name, found, style_of(number)["color"])
    panels[-1].set_xlabel("time since the measurement's start (ms)")
    panels[0].set_title("delivered payload (Mbit/s); red: while a fault lasted, in the first repetition")
    return figure


def _panel(axes: Axes, name: str, found: Mapping[str, Any], colour: str) -> None:
    rates = []
    for series in found["series"]:
        bin_us = series["bin_us"]
        if not series["bytes"]:
            continue
        rate = np.array(series["bytes"]) * 8 / bin_us
        t_ms = (series["start_us"] + bin_us * (np.arange(len(rate)) + 0.5)) / 1e3
        axes.plot(t_ms, rate, color=colour, linewidth=0.5, alpha=0.35)
        rates.append((t_ms, rate))
    if rates:
        shortest = min(len(rate) for _, rate in rates)
        mean = np.mean([rate[:shortest] for _, rate in rates], axis=0)
        axes.plot(rates[0][0][:shortest], mean, color=colour, linewidth=1.5)
    first = found["samples"][0]["repetition"] if found["samples"] else None
    for fault in found["faults"]:
        if fault["repetition"] != first:
            continue
        begin, end = _fault_span_ms(fault)
        axes.axvspan(
            begin, end if end is not None else axes.get_xlim()[1], color=RED, alpha=0.12, linewidth=0
        )
        axes.axvline(begin, color=RED, linewidth=0.9)
    axes.set_ylim(bottom=0)
    axes.set_ylabel(name, rotation=0, ha="right", va="center")


def _fault_span_ms(fault: Mapping[str, Any]) -> tuple[float, float | None]:
    begin = fault["at_us"] / 1e3
    if fault.get("restore_before_ns") is None:
        return begin, None
    middle = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
    return begin, begin + (fault["restore_before_ns"] - middle) / 1e6


def draw_spread(metric: str, values: Mapping[str, Sequence[float]]) -> Figure:
    """The share of values up to x for each transport, on a logarithmic axis."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    positive = [value for those in values.values() for value in those if value > 0]
    left = 10.0 ** np.floor(np.log10(min(positive))) if positive else 1.0
    for number, (name, those) in enumerate(values.items()):
        if not those:
            continue
        x = np.maximum(np.sort(those), left)
        if len(x) > _POINTS:
            x = x[np.linspace(0, len(x) - 1, _POINTS).round().astype(int)]
        y = np.arange(len(x) + 1) / len(x)
        median = f"{float(np.median(those)):,.0f}".replace(",", " ")
        label = f"{name}: median {median}, n {len(those)}"
        axes.step(np.concatenate([x[:1], x]), y, where="post", label=label, linewidth=1.7, **style_of(number))
    axes.set_xscale("log")
    axes.set_xlim(left=left)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(_NAMES.get(metric, metric))
    axes.set_ylabel("share")
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    axes.grid(visible=True, which="both", color="#EEEEEE", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2)
    return figure


def _tick(value: float, _place: int) -> str:
    """A mark of a logarithmic axis, written out: ``10 000``, ``0.1``."""
    return f"{value:,.0f}".replace(",", " ") if value >= 1 else f"{value:g}"


def sizes_of(transports: Mapping[str, Any]) -> list[str]:
    """The message sizes of a swept collective, smallest first, as the metrics' names have them."""
    names = dict.fromkeys(name for found in transports.values() for name in found["summary"])
    return [name.partition("@")[2] for name in names if name.startswith("busbw_gbps@")]


def draw_bandwidth(transports: Mapping[str, Any], sizes: Sequence[str]) -> Figure:
    """Bus bandwidth by message size: the median with its interval."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for number, (name, found) in enumerate(transports.items()):
        rows = [found["summary"].get(f"busbw_gbps@{size}") or {} for size in sizes]
        middle = np.array([row["p50"] if row.get("n") else np.nan for row in rows], float)
        low, high = (
            [(row.get("ci95_p50") or (m, m))[end] for row, m in zip(rows, middle, strict=True)]
            for end in (0, 1)
        )
        x = np.arange(len(sizes))
        axes.plot(x, middle, marker="o", markersize=4, label=name, linewidth=1.6, **style_of(number))
        axes.fill_between(
            x, np.array(low, float), np.array(high, float), alpha=0.15, color=style_of(number)["color"]
        )
    axes.set_xticks(np.arange(len(sizes)), sizes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message size")
    axes.set_ylabel("bus bandwidth (Gbit/s)")
    axes.legend()
    return figure
