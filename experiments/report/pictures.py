"""The pictures of a result: delivered data around faults, distributions of times, queues over time.

Every picture is written twice, as SVG for a page and as PNG for a quick look. Colours are from the Okabe-Ito
palette, which colour-blind readers can distinguish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from mrclab.experiments.report import packet_pictures
from mrclab.experiments.report.compare import values
from mrclab.experiments.report.events import draw_ev_map
from mrclab.experiments.report.training_pictures import draw_training
from mrclab.experiments.result.model import TIMES
from mrclab.experiments.result.numbers import LONG_US
from mrclab.experiments.result.numbers import figure as number
from mrclab.experiments.result.palette import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    STYLE,
    new_figure,
    plain_log,
    thousands,
)

ROW_INCHES = 0.1
LEAST_INCHES, MOST_INCHES = 0.8, 3.2
MOST_LABELS = 32


def queues_of(found: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the queue lengths in a transport's first repetition that measured queues."""
    rows = (row["queues"] for row in found.get("details", ()) if row.get("queues", {}).get("wait_ns"))
    return next(rows, None)


def draw_queues(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Return the picture of a result's queues over time, if the run measured queues."""
    readings = {n: q for n, found in result["transports"].items() if (q := queues_of(found)) is not None}
    if not readings:
        return {}
    heights = [min(MOST_INCHES, max(LEAST_INCHES, ROW_INCHES * len(q["wait_ns"]))) for q in readings.values()]
    figure = new_figure(7.2, 0.9 + sum(heights) + 0.35 * len(heights))
    panels = np.atleast_1d(figure.subplots(len(readings), 1, height_ratios=heights))
    longest = max(max(max(waits) for waits in q["wait_ns"].values()) for q in readings.values())
    scale = Normalize(0, longest / 1e3)
    for axes, (name, found) in zip(panels, readings.items(), strict=True):
        _queue_panel(axes, name, found, scale)
    panels[-1].set_xlabel("time since the measurement's start (us)")
    bar = figure.colorbar(panels[-1].collections[0], ax=panels.tolist(), aspect=40, pad=0.01)
    bar.set_label("wait in the queue (us)")
    figure.suptitle(f"{result['scenario']}: queues of links", x=0.01, ha="left", fontsize=10)
    return {"queues": figure}


def _queue_panel(axes: Axes, name: str, found: Mapping[str, Any], scale: Normalize) -> None:
    waits = found["wait_ns"]
    values = np.array(list(waits.values()), dtype=float) / 1e3
    edges = found["start_us"] + np.arange(values.shape[1] + 1) * found["bin_us"]
    axes.pcolormesh(edges, np.arange(len(waits) + 1), values, cmap="viridis", norm=scale, rasterized=True)
    axes.invert_yaxis()
    step = -(-len(waits) // MOST_LABELS)
    axes.set_yticks(np.arange(0, len(waits), step) + 0.5, list(waits)[::step], fontsize=5)
    axes.set_title(name, loc="left", fontsize=9)


_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, RED, "#56B4E9", "#000000", "#F0E442", GREY)
_DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (3, 1, 1, 1)))
SPREAD = (*TIMES, "gap_us", "latency_us", "step_us", "stalled_us")
"""The times whose distributions are drawn, in this order. Times without values are skipped."""
_NAMES = {
    "first_loss_us": "time until the first packet was lost",
    "detected_us": "time until a path was retired, or a route changed",
    "rerouted_us": "time until the last packet went onto a broken path",
    "recovered_us": "time until all that the fault took was delivered",
    "recovered_since_loss_us": "the same, from the first loss on",
    "gap_us": "longest time without a delivery after a fault",
    "latency_us": "message latency",
    "step_us": "training step",
    "stalled_us": "communication beyond the usual in a step",
}
_POINTS = 2000
SHOWN_BIN_US = 20_000.0
"""The width of the drawn bins, us. Bins of this width hide bursts and delays of the scheduler."""
FEWEST_BINS = 100
"""The smallest number of drawn bins. In a short run, bins are therefore narrower."""


def draw_all(directory: Path, result: Mapping[str, Any], part: int = 0, parts: int = 1) -> tuple[str, ...]:
    """Draw into ``directory`` all pictures for which the result has data. Return the names of the pictures.

    If several processes share the work, ``parts`` is the number of processes, and ``part`` is this process's
    number (from 0).
    """
    transports: Mapping[str, Any] = result["transports"]
    drawn: dict[str, Figure] = {}
    with mpl.rc_context(STYLE):
        drawn |= packet_pictures.draw(result)
        drawn |= draw_queues(result)
        drawn |= draw_ev_map(result)
        drawn |= draw_training(result, {n: style_of(place) for place, n in enumerate(transports)})
        if any(any(series["bytes"]) for found in transports.values() for series in found["series"]):
            drawn["delivered"] = draw_delivered(result)
        times = {name: values(result, next(iter(transports)), name) for name in TIMES[:4]}
        if len(transports) == 1 and any(times.values()):
            title = f"{_run(result)}: times of its faults"
            drawn["times-cdf"] = draw_spread("time since the fault", times, title)
        for metric in SPREAD:
            if len(transports) == 1 and metric in TIMES:
                continue
            spread = {name: values(result, name, metric) for name in transports}
            if any(spread.values()):
                drawn[f"cdf-{metric}"] = draw_spread(_NAMES[metric], spread, _run(result))
        if sizes := sizes_of(transports):
            drawn["busbw"] = draw_bandwidth(transports, sizes)
        for name, figure in list(drawn.items())[part::parts]:
            figure.savefig(directory / f"{name}.svg", metadata={"Date": None}, transparent=True)
            figure.set_layout_engine("none")  # keep the layout of the SVG: computing it again would be slow
            figure.savefig(directory / f"{name}.png", dpi=150)
    return tuple(drawn)


def style_of(place: int) -> dict[str, Any]:
    """Return the line style of the transport with the number ``place``: the same in every picture."""
    return {"color": _COLOURS[place % len(_COLOURS)], "linestyle": _DASHES[place // 3 % len(_DASHES)]}


def draw_delivered(result: Mapping[str, Any]) -> Figure:
    """Draw the delivered payload over time: a panel for each transport, a line for each repetition."""
    transports = result["transports"]
    figure = new_figure(7.2, 1.4 + 1.35 * len(transports))
    panels = np.atleast_1d(figure.subplots(len(transports), 1, sharex=True, sharey=True))
    widths = [
        _panel(axes, name, found, style_of(place)["color"])
        for place, (axes, (name, found)) in enumerate(zip(panels, transports.items(), strict=True))
    ]
    panels[-1].set_xlabel("time since the measurement's start (ms)")
    broken = any(found["faults"] for found in transports.values())
    note = "; red: a fault lasts" if broken else ""
    note += "; grey: a standstill" if any(standstills_of(found) for found in transports.values()) else ""
    width = f"bins of {number(max(widths) / 1e3)} ms"
    figure.suptitle(f"{_run(result)}: delivered payload, {width}{note}", x=0.01, ha="left", fontsize=10)
    return figure


def _run(result: Mapping[str, Any]) -> str:
    return f"{result['scenario']} on {result['topology']} ({result['target']})"


def standstills_of(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an entry for each repetition with standstills. In a standstill no data moved."""
    rows = found.get("details", ())
    return [
        {"repetition": row["repetition"], **row["standstills"]}
        for row in rows
        if row.get("standstills", {}).get("found")
    ]


def _shown_bins(series: Mapping[str, Any]) -> int:
    """Return how many bins are drawn as one. A drawn bin covers about 20 ms, or less time in a short run."""
    bin_us = float(series["bin_us"])
    length_us = bin_us * len(series["bytes"])
    return max(1, round(min(SHOWN_BIN_US, length_us / FEWEST_BINS) / bin_us))


def _panel(axes: Axes, name: str, found: Mapping[str, Any], colour: str) -> float:
    """Draw the repetitions of a transport, and return the width of the drawn bins, us."""
    rates = []
    bin_us = 0.0
    for series in found["series"]:
        if not series["bytes"]:
            continue
        joined = _shown_bins(series)
        bin_us = series["bin_us"] * joined
        whole = len(series["bytes"]) // joined * joined
        rate = np.array(series["bytes"][:whole]).reshape(-1, joined).sum(axis=1) * 8 / bin_us
        t_ms = (series["start_us"] + bin_us * (np.arange(len(rate)) + 0.5)) / 1e3
        axes.plot(t_ms, rate, color=colour, linewidth=0.5, alpha=0.35)
        rates.append((t_ms, rate))
    if rates:
        shortest = min(len(rate) for _, rate in rates)
        mean = np.mean([rate[:shortest] for _, rate in rates], axis=0)
        axes.plot(rates[0][0][:shortest], mean, color=colour, linewidth=1.5)
    first = next((fault["repetition"] for fault in found["faults"]), None)
    for fault in found["faults"]:
        if fault["repetition"] != first or fault["at_us"] is None:
            continue
        begin, end = _fault_span_ms(fault)
        stop = end if end is not None else axes.get_xlim()[1]
        axes.axvspan(begin, stop, color=RED, alpha=0.25, linewidth=0)
        axes.axvline(begin, color=RED, linewidth=0.9)
    for row in standstills_of(found):
        for at_us, length_us in row["found"] if row["repetition"] == (first or 0) else ():
            axes.axvspan(at_us / 1e3, (at_us + length_us) / 1e3, color=GREY, alpha=0.8, linewidth=0.8)
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(thousands))
    axes.set_ylabel("Mbit/s")
    axes.set_title(name, fontsize=9)
    return bin_us


def _fault_span_ms(fault: Mapping[str, Any]) -> tuple[float, float | None]:
    begin = fault["at_us"] / 1e3
    if fault.get("restore_before_ns") is None:
        return begin, None
    middle = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
    return begin, begin + (fault["restore_before_ns"] - middle) / 1e6


def draw_spread(meaning: str, spread: Mapping[str, Sequence[float]], title: str = "") -> Figure:
    """Draw distributions of times (us): the share of values up to x, a curve for each key of ``spread``."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    long = max((value for those in spread.values() for value in those), default=0) >= LONG_US
    scale, unit = (1e3, "ms") if long else (1.0, "\N{MICRO SIGN}s")
    spread = {name: [value / scale for value in those] for name, those in spread.items()}
    positive = [value for those in spread.values() for value in those if value > 0]
    # A logarithmic axis has no zero, so values that are too small are drawn at the left edge.
    left = max(10.0 ** np.floor(np.log10(min(positive))), 0.1 / scale) if positive else 1.0
    for place, (name, those) in enumerate(spread.items()):
        if not those:
            continue
        x = np.maximum(np.sort(those), left)
        if len(x) > _POINTS:
            x = x[np.linspace(0, len(x) - 1, _POINTS).round().astype(int)]
        y = np.arange(len(x) + 1) / len(x)
        words = name.removesuffix("_us").replace("_", " ") if name in TIMES else name
        label = f"{words}: median {number(float(np.median(those)))} {unit}, n {len(those)}"
        style = style_of(place)
        if name in TIMES:  # different dashes, so that both curves are visible if two times are equal
            style["linestyle"] = _DASHES[place % len(_DASHES)]
        axes.step(np.concatenate([x[:1], x]), y, where="post", label=label, linewidth=1.7, **style)
    below = any(value < left for those in spread.values() for value in those)
    note = f", logarithmic; below {left:g} at the left edge" if below else ", logarithmic"
    axes.set_xscale("log")
    axes.set_xlim(left=left)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel(f"{meaning} ({unit}{note})")
    axes.set_ylabel("share of values up to x")
    axes.set_title(title)
    plain_log(axes.xaxis)
    axes.grid(visible=True, which="both", color="#EEEEEE", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.2), ncols=2)
    return figure


def sizes_of(transports: Mapping[str, Any]) -> list[str]:
    """Return the message sizes of a collective as they are in the metrics' names, in the measured order."""
    names = dict.fromkeys(name for found in transports.values() for name in found["summary"])
    return [name.partition("@")[2] for name in names if name.startswith("busbw_gbps@")]


def draw_bandwidth(transports: Mapping[str, Any], sizes: Sequence[str]) -> Figure:
    """Draw the bus bandwidth over the message size: medians with their intervals."""
    figure = new_figure(7.2, 3.6)
    axes = figure.subplots()
    for place, (name, found) in enumerate(transports.items()):
        rows = [found["summary"].get(f"busbw_gbps@{size}") or {} for size in sizes]
        middle = np.array([row["p50"] if row.get("n") else np.nan for row in rows], float)
        low, high = (
            [(row.get("ci95_p50") or (m, m))[end] for row, m in zip(rows, middle, strict=True)]
            for end in (0, 1)
        )
        x, colour = np.arange(len(sizes)), style_of(place)["color"]
        axes.plot(x, middle, marker="o", markersize=4, label=name, linewidth=1.6, **style_of(place))
        axes.fill_between(x, np.array(low, float), np.array(high, float), alpha=0.15, color=colour)
    axes.set_xticks(np.arange(len(sizes)), sizes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("message size")
    axes.set_ylabel("bus bandwidth (Gbit/s)")
    axes.legend()
    return figure
