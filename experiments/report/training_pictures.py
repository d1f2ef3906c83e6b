"""The pictures of a training: the loss over time, and how long each step took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from mrclab.experiments.report.training import CONTROL, trainings
from mrclab.experiments.result.palette import RED, new_figure

Floats = npt.NDArray[np.float64]
SMOOTHED = 9
"""The number of steps over which losses are averaged. Without averaging, noise would hide the trend."""


def draw_training(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draw the pictures of the training, if there is one. ``styles`` are line styles by transport."""
    if not any(any(t["losses"] for t in trainings(found)) for found in result["transports"].values()):
        return {}
    return {"training-loss": _losses(result, styles), "training-steps": _steps(result, styles)}


def _losses(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the loss over steps and over time.

    If a collective timeout would end a job, also draw the loss over time with this timeout.
    """
    firsts = {name: found[0] for name, t in result["transports"].items() if (found := trainings(t))}
    watched = any(training["under_watchdog"]["crashes"] for training in firsts.values())
    figure = new_figure(7.2, 6.6 if watched else 4.6)
    panels = figure.subplots(3 if watched else 2, 1, sharey=True)
    _over_steps(panels[0], firsts, styles)
    for name, training in firsts.items():
        end_s, losses = np.array(training["end_us"]) / 1e6, np.array(training["losses"])
        panels[1].plot(end_s, losses, linewidth=0.6, alpha=0.35, **styles[name])
        panels[1].plot(end_s, smoothed(losses), linewidth=1.4, **styles[name])
    _mark_faults(panels[1], result)
    panels[1].set_title(f"the same over time, mean of {SMOOTHED} steps (thin: each); red: faults")
    if watched:
        panels[1].sharex(panels[2])
        _under_watchdog(panels[2], firsts, styles)
        timeout_s = result["parameters"]["workload"]["collective_timeout_ns"] / 1e9
        ended = f"the same with a collective timeout of {timeout_s:g} s; dotted: the job is ended"
        panels[2].set_title(ended)
    panels[-1].set_xlabel("time since the measurement's start (s)")
    return figure


def _over_steps(axes: Any, firsts: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> None:
    """Draw the training's loss over the steps. A wide grey line behind the other lines is the control."""
    if CONTROL in firsts:
        losses = firsts[CONTROL]["losses"]
        axes.plot(
            range(1, len(losses) + 1), losses, linewidth=5, color="#DDDDDD", label=f"{CONTROL}, no faults"
        )
    for name, training in firsts.items():
        if name != CONTROL:
            losses = training["losses"]
            axes.plot(range(1, len(losses) + 1), losses, label=name, linewidth=1.2, **styles[name])
    axes.set_title("loss (nats a character) over steps, first repetition")
    axes.set_xlabel("step")
    axes.legend()


def _under_watchdog(axes: Any, firsts: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> None:
    for name, training in firsts.items():
        course = training["under_watchdog"]
        axes.plot(*_in_pieces(course), linewidth=1.4, **styles[name])
        for crash in course["crashes"]:
            axes.axvline(crash["at_us"] / 1e6, color=styles[name]["color"], linewidth=0.9, linestyle=":")


def smoothed(losses: Floats) -> Floats:
    """Return for each step the mean of the losses around it. At both ends, fewer losses are averaged."""
    half = SMOOTHED // 2
    ends = range(len(losses))
    return np.array([losses[max(0, at - half) : at + half + 1].mean() for at in ends], np.float64)


def _in_pieces(course: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """Return times (s) and losses for a plot. The line has a gap from each crash until the job runs again."""
    at_us = np.array(course["end_us"], float)
    crashes_us = np.array([crash["at_us"] for crash in course["crashes"]])
    places = np.searchsorted(at_us, crashes_us)
    return np.insert(at_us, places, crashes_us) / 1e6, np.insert(course["losses"], places, np.nan)


def _steps(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    transports = {name: found for name, found in result["transports"].items() if trainings(found)}
    figure = new_figure(7.2, 1.2 + 1.05 * len(transports))
    panels = np.atleast_1d(figure.subplots(len(transports), 1, sharex=True, sharey=True))
    for axes, (name, found) in zip(panels, transports.items(), strict=True):
        for number, training in enumerate(trainings(found)):
            took_s = (np.array(training["end_us"]) - np.array(training["start_us"])) / 1e6
            first = number == 0
            axes.step(
                np.arange(len(took_s)),
                took_s,
                where="mid",
                color=styles[name]["color"],
                linewidth=1.3 if first else 0.7,
                alpha=1.0 if first else 0.4,
            )
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, axis="y", color="#EEEEEE", linewidth=0.6)
        axes.set_ylabel(name, rotation=0, ha="right", va="center")
    panels[0].set_title("time of each step (s, logarithmic); thin: the other repetitions")
    panels[-1].set_xlabel("step")
    return figure


def _mark_faults(axes: Any, result: Mapping[str, Any]) -> None:
    """Mark the faults in the first repetition of the first transport that has faults."""
    for found in result["transports"].values():
        faults = [fault for fault in found["faults"] if fault["repetition"] == 0]
        low, named = 0.0, 0
        for number, fault in enumerate(faults):
            begin_s = fault["at_us"] / 1e6
            until_ns = fault.get("restore_before_ns")
            middle_ns = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
            end_s = axes.get_xlim()[1] if until_ns is None else begin_s + (until_ns - middle_ns) / 1e9
            axes.axvspan(begin_s, end_s, color=RED, alpha=0.12, linewidth=0)
            if number and fault["kind"] == faults[number - 1]["kind"] and begin_s < low:
                continue  # this fault belongs to a flap, whose name is in the picture already
            low = max(end_s, begin_s + 0.1 * (axes.get_xlim()[1] - axes.get_xlim()[0]))
            place = axes.get_xaxis_transform()
            high = 0.97 - 0.1 * (named % 3)
            axes.text(begin_s, high, fault["kind"], transform=place, fontsize=7, va="top")
            named += 1
        if faults:
            return
