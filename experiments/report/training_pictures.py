"""The pictures of a training: the loss over time, and how long each step took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from mrclab.experiments.report.training import trainings
from mrclab.experiments.result.palette import RED, new_figure

Floats = npt.NDArray[np.float64]


def draw_training(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> dict[str, Figure]:
    """Draw the pictures that the data allow; ``styles`` are the lines of the transports, by name."""
    if not any(any(t["losses"] for t in trainings(found)) for found in result["transports"].values()):
        return {}
    return {"training-loss": _losses(result, styles), "training-steps": _steps(result, styles)}


def _losses(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw the loss over time: as measured, and under the watchdog if that would have ended the job."""
    figure = new_figure(7.2, 4.4)
    upper, lower = figure.subplots(2, 1, sharex=True, sharey=True)
    watched = False
    for name, found in result["transports"].items():
        for training in trainings(found)[:1]:
            end_s = np.array(training["end_us"]) / 1e6
            upper.plot(end_s, training["losses"], label=name, linewidth=1.4, **styles[name])
            course = training["under_watchdog"]
            watched = watched or bool(course["crashes"])
            lower.plot(*_in_pieces(course), linewidth=1.4, **styles[name])
            for crash in course["crashes"]:
                lower.axvline(crash["at_us"] / 1e6, color=styles[name]["color"], linewidth=0.9, linestyle=":")
    _mark_faults(upper, result)
    timeout_s = result["parameters"]["workload"]["collective_timeout_ns"] / 1e9
    upper.set_title("loss (nats a character), first repetition; red: while a fault lasted")
    ended = "dotted: the job is ended" if watched else "no job would have been ended"
    lower.set_title(f"the same with a collective timeout of {timeout_s:g} s; {ended}")
    lower.set_xlabel("time since the measurement's start (s)")
    upper.legend()
    return figure


def _in_pieces(course: Mapping[str, Any]) -> tuple[Floats, Floats]:
    """Return times (s) and losses of a course, with a gap from each crash until the job is back."""
    at_us = np.array(course["end_us"], float)
    crashes_us = np.array([crash["at_us"] for crash in course["crashes"]])
    places = np.searchsorted(at_us, crashes_us)
    return np.insert(at_us, places, crashes_us) / 1e6, np.insert(course["losses"], places, np.nan)


def _steps(result: Mapping[str, Any], styles: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Draw how long each step took, by its number, a panel a transport."""
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
    """Mark the time of faults in the first repetition of the first transport that met any."""
    for found in result["transports"].values():
        faults = [fault for fault in found["faults"] if fault["repetition"] == 0]
        for fault in faults:
            begin_s = fault["at_us"] / 1e6
            until_ns = fault.get("restore_before_ns")
            middle_ns = (fault["t_before_ns"] + fault["t_after_ns"]) / 2
            end_s = axes.get_xlim()[1] if until_ns is None else begin_s + (until_ns - middle_ns) / 1e9
            axes.axvspan(begin_s, end_s, color=RED, alpha=0.12, linewidth=0)
        if faults:
            return
