"""The pictures of a spray's packets: one recovery, the rate around faults, EVs in use, delivery times.

The pictures show the first repetition that has data for them (`mrclab.experiments.measure.pictures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from mrclab.experiments.result.numbers import figure as figure_text
from mrclab.experiments.result.numbers import us
from mrclab.experiments.result.palette import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    new_figure,
    plain_log,
    thousands,
)
from mrclab.experiments.result.statistics import MIN_FOR_INTERVAL

_TIMES: dict[str, tuple[str, Any]] = {
    "detected": (ORANGE, (0, (4, 2))),
    "rerouted": (PURPLE, (0, (1, 1.2))),
    "recovered": (GREEN, "-"),
}
_LABELS = {
    "detected": "detected",
    "rerouted": "rerouted (last onto a broken path)",
    "recovered": "recovered",
}
_MOST_LABELS = 40  # with more rows, only planes are labelled


def draw(result: Mapping[str, Any]) -> dict[str, Figure]:
    """Return all pictures for which a result has data, by name."""
    found: dict[str, Figure] = {}
    for transport, part in result["transports"].items():
        for data in part["pictures"][:1]:
            trial = _trial(result, transport, data)
            title = f"{result['scenario']} on {result['topology']} ({result['target']})"
            if trial is not None:
                found["recovery"] = draw_recovery(data["packets"], trial, title)
                if "all" in data.get("delivered", ()):  # not if no packet arrived before the faults
                    found["delivered-rate"] = draw_delivered_bytes(data["delivered"], trial, title)
                elif "rate" in data:
                    found["delivered-rate"] = draw_rate(data["rate"], trial, title)
                found["ev-activity"] = draw_paths(data["paths"], trial, title)
            if data["spread"]["out_of_order"] > 0:
                found["reordering"] = draw_reordering(data["spread"], title)
            if data["spread"]["delivery_us"]:
                found["delivery-times"] = draw_delivery(data["spread"], title)
        if found:
            break
    return found


def _trial(result: Mapping[str, Any], transport: str, data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    number = data.get("packets", {}).get("trial")
    ours = (transport, data["repetition"], number)
    return next((t for t in result["trials"] if (t["transport"], t["repetition"], t["trial"]) == ours), None)


def draw_recovery(data: Mapping[str, Any], trial: Mapping[str, Any], title: str) -> Figure:
    """Draw one trial as a time-sequence diagram: when each packet (PSN) was sent and when it arrived."""
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()

    def marks(key: str, label: str, **style: Any) -> None:
        if data[key]["t_us"]:
            axes.scatter(data[key]["t_us"], data[key]["psn"], label=label, **style)

    hollow: dict[str, Any] = {"facecolors": "none", "linewidths": 0.9}
    marks("sent", "sent", s=10, edgecolors=BLUE, **hollow)
    marks("delivered", "delivered", s=8, color=BLUE, linewidths=0, zorder=3)
    marks("redelivered", "delivered, retransmitted", s=8, color=GREEN, linewidths=0, zorder=3)
    marks("lost", "lost", s=30, marker="x", color=RED, zorder=4)
    marks("resent", "retransmission sent", s=22, marker="^", edgecolors=GREEN, **hollow)
    axes.axvline(0, color=RED, linewidth=1.4, label="fault", zorder=1)
    for name, (colour, line) in _TIMES.items():
        if trial[f"{name}_us"] is not None:
            label = f"{_LABELS[name]} {us(trial[f'{name}_us'])} \N{MICRO SIGN}s"
            style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.2, "zorder": 1}
            axes.axvline(trial[f"{name}_us"], label=label, **style)
    room = 0.01 * (data["to_us"] - data["from_us"])
    axes.set_xlim(data["from_us"] - room, data["to_us"] + room)
    axes.set_xlabel("time since the fault (\N{MICRO SIGN}s)")
    axes.set_ylabel("packet number (PSN, from the first shown)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(thousands))
    axes.set_title(f"{title}: the median recovery, packet by packet\n{_place(trial)}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _place(trial: Mapping[str, Any]) -> str:
    return f"{trial['fault']['where']} broken, trial {trial['trial'] + 1}"


def draw_delivered_bytes(data: Mapping[str, Any], trial: Mapping[str, Any], title: str) -> Figure:
    """Draw the payload bytes delivered so far, around the fault: on all paths, and on the broken paths.

    Curves are means over the trials, with 95 % intervals if there are at least six trials. Dashed lines
    continue the rate before the fault.
    """
    panels = [
        (data[name], label, colour)
        for name, label, colour in (("all", "all paths", BLUE), ("broken", "paths that broke", RED))
        if name in data
    ]
    figure = new_figure(7.2, 1.6 + 1.8 * len(panels))
    stacked = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
    t_us = np.array(data["t_us"])
    for axes, (curve, label, colour) in zip(stacked, panels, strict=True):
        scale, unit = (1e6, "MB") if max(curve["high"]) >= 1e6 else (1e3, "kB")
        mean, low, high = (np.array(curve[key]) / scale for key in ("mean", "low", "high"))
        # The dashed line meets the curve at the time of the fault. After that time, the distance between the
        # line and the curve is the effect of the fault.
        at_fault = float(np.interp(0, t_us, mean))
        ideal = at_fault + curve["per_us"] * t_us / scale
        axes.plot(t_us, ideal, color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), label="rate of before")
        axes.fill_between(t_us, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(t_us, mean, color=colour, linewidth=1.6, label=label)
        axes.axvline(0, color=DARK, linewidth=1.2)
        for name in ("rerouted", "recovered"):
            if trial[f"{name}_us"] is not None:
                style, line = _TIMES[name]
                axes.axvline(trial[f"{name}_us"], color=style, linestyle=line, linewidth=1.2)
        axes.set_ylim(0, max(float(high.max()), float(ideal[-1])) * 1.05)
        axes.set_ylabel(f"delivered ({unit})")
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    stacked[-1].set_xlim(t_us[0], t_us[-1])
    stacked[-1].set_xlabel("time since the fault (\N{MICRO SIGN}s)")
    stacked[-1].xaxis.set_major_formatter(FuncFormatter(thousands))
    names = [name for name in ("rerouted", "recovered") if trial[f"{name}_us"] is not None]
    handles = [Line2D([], [], color=DARK, linewidth=1.2, label="fault")]
    for name in names:
        style, line = _TIMES[name]
        text = f"{name}, median trial: {us(trial[f'{name}_us'])} \N{MICRO SIGN}s"
        handles.append(Line2D([], [], color=style, linestyle=line, linewidth=1.2, label=text))
    figure.legend(handles=handles, loc="outside lower left", ncols=3)
    bounds = " (95 %)" if data["trials"] >= MIN_FOR_INTERVAL else ""
    many = f"mean of {data['trials']} trials{bounds}" if data["trials"] > 1 else "one trial"
    stacked[0].set_title(f"{title}: payload delivered around the fault, {many}")
    return figure


def draw_rate(data: Mapping[str, Any], trial: Mapping[str, Any], title: str) -> Figure:
    """Draw the smoothed delivery rates around the fault, for results in older forms.

    Older results have two rates, for broken paths and for other paths. The oldest results have one rate for
    all paths.
    """
    figure = new_figure()
    axes = figure.subplots()
    t_us = data["t_us"]
    curves = [("others", "all other paths", BLUE), ("broken", "paths that the fault broke", RED)]
    if "mean_mbps" in data:
        axes.fill_between(t_us, data["p10_mbps"], data["p90_mbps"], color=GREY, alpha=0.3, linewidth=0)
        axes.plot(
            t_us, data["mean_mbps"], color=BLUE, linewidth=1.8, label=f"mean of {data['trials']} trials"
        )
        axes.set_ylabel("delivered payload (Mbit/s)")
    else:
        for name, label, colour in curves:
            if (curve := data.get(name)) is None:
                continue
            axes.fill_between(t_us, curve["low"], curve["high"], color=colour, alpha=0.15, linewidth=0)
            smoothed = f"\N{GREEK SMALL LETTER SIGMA} {us(curve['sigma_us'])} \N{MICRO SIGN}s"
            axes.plot(
                t_us, curve["mean"], color=colour, linewidth=1.8, label=f"{label} (smoothed, {smoothed})"
            )
        axes.set_ylabel("packets delivered, % of before")
    axes.axvline(0, color=DARK, linewidth=1.2, label="fault")
    for name in ("rerouted", "recovered"):
        if trial[f"{name}_us"] is not None:
            colour, line = _TIMES[name]
            text = f"{name}, median trial: {us(trial[f'{name}_us'])} \N{MICRO SIGN}s"
            axes.axvline(trial[f"{name}_us"], color=colour, linestyle=line, linewidth=1.2, label=text)
    axes.set_xlim(t_us[0], t_us[-1])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("time since the fault (\N{MICRO SIGN}s)")
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set_title(f"{title}: delivered around the fault, mean of {data['trials']} trials (95 %)")
    axes.legend(loc="upper left", bbox_to_anchor=(0, -0.16), ncols=2)
    return figure


def draw_paths(data: Mapping[str, Any], trial: Mapping[str, Any], title: str) -> Figure:
    """Draw a row for each EV in a trial.

    A row shows the sent packets, whether the path was broken, and when the EV was not in use.
    """
    rows = data["rows"]
    figure = new_figure(7.2, min(1.8 + 0.16 * max(len(rows), 8), 9.0))
    axes = figure.subplots()
    width = (data["to_ms"] - data["from_ms"]) / data["columns"]
    for key, colour, line in (("sent", BLUE, 0.8), ("resent", GREEN, 1.2)):
        marks = [
            [(data["from_ms"] + (column + 0.5) * width, row + half) for half in (-0.42, 0.42)]
            for row, column, _ in data[key]
        ]
        many = len(marks) > 2000
        axes.add_collection(LineCollection(marks, colors=colour, linewidths=line, rasterized=many))
    # Markers of a fixed size keep the few lost packets visible, even if the rows are very narrow.
    for key, mark, colour in (("resent", "^", GREEN), ("lost", "x", RED)):
        x = [data["from_ms"] + (column + 0.5) * width for _, column, _ in data[key]]
        few = len(data[key]) <= 200
        axes.scatter(
            x, [row for row, _, _ in data[key]], s=26 if few else 6, marker=mark, color=colour, zorder=5
        )
    for row, begin, end in data["retired"]:
        axes.barh(row, end - begin, left=begin, height=0.96, color="#DDDDDD", zorder=0.5)
    for row, path in enumerate(rows):
        if path["cut"]:
            for edge in (row - 0.5, row + 0.5):
                axes.plot([0, data["repaired_ms"]], [edge] * 2, color=RED, linewidth=1.2, zorder=3)
    axes.axvline(0, color=RED, linewidth=0.9, zorder=0.8)
    axes.axvline(data["repaired_ms"], color=DARK, linewidth=0.9, linestyle="--", zorder=0.8)
    _label_planes(axes, rows)
    axes.set_xlim(data["from_ms"], data["to_ms"])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("time since the fault (ms)")
    axes.set_title(f"{title}: EVs in use, a row each\n{_place(trial)}")
    handles = [
        Line2D([], [], color=BLUE, marker="|", linestyle="", label="packets sent"),
        Line2D([], [], color=RED, marker="x", linestyle="", label="lost"),
        Line2D([], [], color=GREEN, marker="^", linestyle="", label="retransmission"),
        Patch(color="#DDDDDD", label="EV retired"),
        Line2D([], [], color=RED, linewidth=1.6, label="path broken"),
        Line2D([], [], color=DARK, linestyle="--", linewidth=0.9, label="repaired"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def _label_planes(axes: Axes, rows: list[Mapping[str, Any]]) -> None:
    """Label each row with its EV's path. If there are too many rows, label only the planes."""
    planes: dict[int, list[int]] = {}
    for row, path in enumerate(rows):
        planes.setdefault(path["plane"], []).append(row)
    for group in list(planes.values())[:-1]:
        axes.axhline(max(group) + 0.5, color=GREY, linewidth=0.6)
    if len(rows) <= _MOST_LABELS:
        axes.set_yticks(range(len(rows)))
        labels = [f"plane {p['plane']}" + (f", T1 {p['t1']}" if p["t1"] is not None else "") for p in rows]
        axes.set_yticklabels(labels, fontsize=7)
    else:
        axes.set_yticks([sum(group) / len(group) for group in planes.values()])
        axes.set_yticklabels([f"plane {plane}" for plane in planes])
    axes.tick_params(axis="y", length=0)


def draw_reordering(data: Mapping[str, Any], title: str) -> Figure:
    """Draw the share of packets that were overtaken by at least x other packets."""
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    curve = data["reordering"]
    # y is the share of packets with a value of at least x. It is constant up to each x and drops after x.
    axes.step(curve["x"], curve["share"], where="pre", color=BLUE, linewidth=1.6)
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=1)
    axes.xaxis.set_major_formatter(FuncFormatter(thousands))
    axes.set_xlim(left=0)
    axes.set_xlabel("packets sent later that arrived earlier (PSNs)")
    axes.set_ylabel("share of packets at least so late")
    axes.grid(visible=True, which="major", color="#EEEEEE", linewidth=0.6)
    late = figure_text(100 * data["out_of_order"])
    axes.set_title(f"{title}: {late} % of {data['packets']:,} packets arrived out of order")
    return figure


def draw_delivery(data: Mapping[str, Any], title: str) -> Figure:
    """Draw the delivery times of packets sent without a fault, and of packets sent during a fault."""
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    labels = {"no_fault": ("no fault", GREY), "fault": ("while a fault lasts", ORANGE)}
    for key, (label, colour) in labels.items():
        if curve := data["delivery_us"].get(key):
            x = np.maximum(curve["x"], 1e-3)
            axes.step(x, curve["share"], where="pre", color=colour, linewidth=1.6, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("from first transmission to delivery (\N{MICRO SIGN}s)")
    axes.set_ylabel("share of packets that took at least so long")
    plain_log(axes.xaxis)
    axes.grid(visible=True, which="major", color="#EEEEEE", linewidth=0.6)
    axes.legend()
    axes.set_title(f"{title}: delivery times of single packets, repair included")
    return figure
