"""The distributions of a run as pictures: reordering, and the time that a packet's delivery took."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from experiments.measure.analysis import Trial
from experiments.measure.spread import ccdf, delivery_times_ns, reorder_extents
from experiments.measure.trace import Trace
from experiments.report.plots import BLUE, GREY, ORANGE, STYLE, Picture, new_figure, save_picture


def draw_spreads(directory: Path, trace: Trace, trials: Sequence[Trial], title: str) -> tuple[Picture, ...]:
    """Draws both distributions into the directory, and says which files they are."""
    if not len(trace.received.t_ns):
        return ()
    with mpl.rc_context(STYLE):
        return (
            save_picture(directory, "reordering", draw_reordering(trace, title)),
            save_picture(directory, "delivery-times", draw_delivery(trace, trials, title)),
        )


def draw_reordering(trace: Trace, title: str) -> Figure:
    """How many packets arrived so many places late: the price of spraying, paid by direct placement."""
    extents = reorder_extents(trace)
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    x, share = ccdf(extents)
    axes.step(x, share, where="post", color=BLUE, linewidth=1.6)
    late = float(np.mean(extents > 0)) if len(extents) else 0.0
    axes.set_yscale("log")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.set_xlabel("packets sent later that arrived earlier (PSNs)")
    axes.set_ylabel("share of packets at least so late")
    axes.grid(visible=True, which="major", color="#EEEEEE", linewidth=0.6)
    axes.set_title(f"{title}: {100 * late:.1f} % of {len(extents):,} packets arrived out of order")
    return figure


def draw_delivery(trace: Trace, trials: Sequence[Trial], title: str) -> Figure:
    """How long packets took, of all that were sent before the faults and of all sent while one lasted."""
    sent_ns, took_ns = delivery_times_ns(trace)
    during = np.zeros(len(sent_ns), bool)
    for trial in trials:
        fault = trial.fault
        end = fault.restore_before_ns if fault.restore_before_ns is not None else trial.window_ns[1]
        during |= (sent_ns >= fault.t_before_ns) & (sent_ns < end)
    figure = new_figure(7.2, 3.4)
    axes = figure.subplots()
    for mask, colour, label in ((~during, GREY, "no fault"), (during, ORANGE, "while a fault lasts")):
        if mask.any():
            x, share = ccdf(took_ns[mask])
            axes.step(np.maximum(x, 1) / 1000, share, where="post", color=colour, linewidth=1.6, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("from first transmission to delivery (\N{MICRO SIGN}s)")
    axes.set_ylabel("share of packets that took at least so long")
    axes.grid(visible=True, which="major", color="#EEEEEE", linewidth=0.6)
    axes.legend()
    axes.set_title(f"{title}: delivery times of single packets, repair included")
    return figure
