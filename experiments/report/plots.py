"""The pictures of a run: what was delivered around the fault, which EVs were in use, how the times spread.

Every picture is written twice, as SVG for a page and as PNG for a quick look. Colours are of the Okabe-Ito
palette, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from experiments.measure.analysis import TIMES, Trial
from experiments.measure.events import EventLog
from experiments.measure.trace import BoolArray, Trace
from topologies import Path as NetworkPath

FloatArray = npt.NDArray[np.float64]

BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"
GREY, DARK = "#999999", "#333333"
_TIME_COLOURS = {"detect": ORANGE, "switch": PURPLE, "whole": GREEN}
_TIME_STYLES = {"detect": (0, (4, 2)), "switch": (0, (1, 1.2)), "whole": "-"}
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "mrclab",  # the same run gives the same SVG
}
_POINTS = 500
_MANY_MARKS = 5000  # more of them are a picture within the SVG


@dataclass(frozen=True)
class Picture:
    """A picture's name and the files that show it."""

    name: str
    files: tuple[Path, ...]


def draw_all(
    directory: Path, trace: Trace, trials: Sequence[Trial], events: EventLog, title: str
) -> tuple[Picture, ...]:
    """Draws every picture that the trials allow into the directory and says which.

    ``events`` are the sender's; ``title`` says what was run, such as ``link-kill on lab (ebpf)``.
    """
    directory.mkdir(parents=True, exist_ok=True)
    timed = [trial for trial in trials if trial.whole.ns is not None]
    pictures = []
    with mpl.rc_context(STYLE):
        if timed:
            middle = representative(timed)
            pictures.append(save_picture(directory, "recovery", draw_recovery(trace, middle, title)))
            pictures.append(save_picture(directory, "delivered-rate", draw_rate(trace, timed, title)))
            pictures.append(save_picture(directory, "times-cdf", draw_cdf(timed, title)))
        if trials:
            shown = representative(timed) if timed else trials[0]
            pictures.append(
                save_picture(directory, "ev-activity", draw_ev_activity(trace, shown, events, title))
            )
    return tuple(pictures)


def representative(trials: Sequence[Trial]) -> Trial:
    """The trial with the median ``whole`` of those that have one. Raises ValueError where none has."""
    timed = sorted((t for t in trials if t.whole.ns is not None), key=lambda t: t.whole.ns or 0)
    if not timed:
        raise ValueError("no trial gave a recovery time")
    return timed[len(timed) // 2]


def save_picture(directory: Path, name: str, figure: Figure) -> Picture:
    """Writes a figure as NAME.svg and NAME.png into the directory."""
    files = tuple(directory / f"{name}.{kind}" for kind in ("svg", "png"))
    figure.savefig(files[0], metadata={"Date": None})
    figure.savefig(files[1], dpi=150)
    return Picture(name, files)


def new_figure(width: float = 7.2, height: float = 4.0) -> Figure:
    """An empty figure of that size in inches."""
    return Figure(figsize=(width, height), layout="constrained")


def _reach_ns(trials: Sequence[Trial]) -> tuple[int, int]:
    """How far around the fault to look so that most recoveries are seen, with room on either side."""
    whole = int(np.percentile([trial.whole.ns or 0 for trial in trials], 75))
    return -max(whole // 2, 300_000), max(int(2.5 * whole), 1_000_000)


def _mark_fault(axes: Axes, label: str = "link cut") -> None:
    axes.axvline(0, color=RED, linewidth=1.4, label=label, zorder=1)


def _thousands(value: float, _: int) -> str:
    return f"{value:,.0f}".replace(",", " ").replace("-", "\N{MINUS SIGN}")


def draw_recovery(trace: Trace, trial: Trial, title: str) -> Figure:
    """One trial as a time-sequence diagram: every packet as it left and as it came in, PSN over time."""
    figure = new_figure(7.2, 4.4)
    axes = figure.subplots()
    zero = trial.fault.middle_ns
    low, high = _reach_ns([trial])
    sent, received = trace.sent, trace.received
    out = (sent.t_ns >= zero + low) & (sent.t_ns <= zero + high)
    base = int(sent.psn[out].min()) if out.any() else 0
    arrived = (received.t_ns >= zero + low) & (received.t_ns <= zero + high) & received.first

    def show(mask: BoolArray, colour: str, marker: str, label: str, size: float, filled: bool) -> None:
        if mask.any():
            x, y = (sent.t_ns[mask] - zero) / 1000, sent.psn[mask] - base
            face = colour if filled else "none"
            axes.scatter(
                x, y, s=size, marker=marker, edgecolors=colour, facecolors=face, linewidths=0.9, label=label
            )

    show(out & ~sent.rtx & ~sent.lost, BLUE, "o", "sent", 10, False)
    again = np.isin(received.tx, np.flatnonzero(sent.rtx))
    for mask, colour, label in (
        (arrived & ~again, BLUE, "delivered"),
        (arrived & again, GREEN, "delivered, retransmitted"),
    ):
        if mask.any():
            x, y = (received.t_ns[mask] - zero) / 1000, received.psn[mask] - base
            axes.scatter(x, y, s=8, color=colour, label=label, linewidths=0, zorder=3)
    lost = out & sent.lost
    if lost.any():
        axes.scatter(
            (sent.t_ns[lost] - zero) / 1000,
            sent.psn[lost] - base,
            s=30,
            marker="x",
            color=RED,
            label="lost",
            zorder=4,
        )
    show(out & sent.rtx, GREEN, "^", "retransmission sent", 22, False)
    _mark_fault(axes)
    for name, measured in trial.times().items():
        if measured.us is not None:
            axes.axvline(
                measured.us,
                color=_TIME_COLOURS[name],
                linestyle=_TIME_STYLES[name],
                linewidth=1.2,
                label=f"{name} {_thousands(measured.us, 0)} \N{MICRO SIGN}s",
                zorder=1,
            )
    axes.set_xlim(low / 1000, high / 1000)
    axes.set_xlabel("time since the link was cut (\N{MICRO SIGN}s)")
    axes.set_ylabel("packet number (PSN, from the first shown)")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    place = f"{trial.fault.where}, trial {trial.index + 1}"
    axes.set_title(f"{title}: the median recovery, packet by packet\n{place}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def draw_rate(trace: Trace, trials: Sequence[Trial], title: str) -> Figure:
    """Delivered payload over time around the fault: each trial, the median one, and the mean of them all.

    Bins would beat against the paced packets, so each arrival is spread by a Gaussian, two packets wide.
    """
    figure = new_figure()
    axes = figure.subplots()
    low, high = _reach_ns(trials)
    sigma = _sigma_ns(trials)
    grid = np.linspace(low, high, _POINTS)
    rates = {trial.index: _smooth_rate(trace, trial, grid, sigma) for trial in trials}
    middle = representative(trials)
    for rate in rates.values():
        axes.plot(grid / 1000, rate, color=GREY, linewidth=0.6, alpha=0.35)
    axes.plot([], [], color=GREY, linewidth=0.8, label="single trials")
    label = f"median, trial {middle.index + 1}"
    axes.plot(grid / 1000, rates[middle.index], color=ORANGE, linewidth=1.3, label=label)
    mean = np.mean(list(rates.values()), axis=0)
    axes.plot(grid / 1000, mean, color=BLUE, linewidth=1.8, label=f"mean of {len(rates)} trials")
    _mark_fault(axes)
    whole = float(np.median([trial.whole.us or 0 for trial in trials]))
    text = f"whole, median {_thousands(whole, 0)} \N{MICRO SIGN}s"
    axes.axvline(whole, color=GREEN, linewidth=1.2, label=text)
    axes.set_xlim(low / 1000, high / 1000)
    axes.set_ylim(bottom=0, top=max(float(np.percentile(list(rates.values()), 99.5)) * 1.35, 1.0))
    axes.set_xlabel("time since the link was cut (\N{MICRO SIGN}s)")
    axes.set_ylabel("delivered payload (Mbit/s)")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    smoothed = f"smoothed, \N{GREEK SMALL LETTER SIGMA} {sigma / 1000:.0f} \N{MICRO SIGN}s"
    axes.set_title(f"{title}: delivered rate around the cut ({smoothed})")
    axes.legend(loc="lower right", ncols=3, frameon=True, edgecolor="none")
    return figure


def _sigma_ns(trials: Sequence[Trial]) -> float:
    """Twice the usual time between two packets."""
    span = sum(trial.window_ns[1] - trial.window_ns[0] for trial in trials)
    return max(2.0 * span / max(sum(trial.packets_sent for trial in trials), 1), 1_000.0)


def _smooth_rate(trace: Trace, trial: Trial, grid_ns: FloatArray, sigma_ns: float) -> FloatArray:
    """Delivered Mbit/s at each point of the grid (ns since the fault). Shape of the grid."""
    received, zero = trace.received, trial.fault.middle_ns
    reach = 4 * sigma_ns
    shown = received.first & (received.t_ns >= zero + grid_ns[0] - reach)
    shown &= received.t_ns <= zero + grid_ns[-1] + reach
    bits = received.payload[shown] * 8.0
    away = (grid_ns[:, None] - (received.t_ns[shown] - zero)[None, :]) / sigma_ns
    weight = np.exp(-0.5 * away**2) / (sigma_ns / 1e9 * np.sqrt(2 * np.pi))
    rate: FloatArray = weight @ bits / 1e6
    return rate


def draw_ev_activity(trace: Trace, trial: Trial, events: EventLog, title: str) -> Figure:
    """Which EVs a trial used, a row each, grouped by plane: packets sent, the cut, the time out of use."""
    paths = trace.paths
    rows = {index: row for row, index in enumerate(sorted(range(len(paths)), key=lambda i: paths[i].ev))}
    height = min(1.8 + 0.16 * max(len(paths), 8), 9.0)
    figure = new_figure(7.2, height)
    axes = figure.subplots()
    fault, zero = trial.fault, trial.fault.middle_ns
    healed = fault.restore_before_ns if fault.restore_before_ns is not None else trial.window_ns[1]
    low, high = _activity_span(trial, events, healed)
    sent = trace.sent
    shown = (sent.t_ns >= zero + low) & (sent.t_ns < zero + high) & (sent.path >= 0)
    row_of = np.array([rows[index] for index in range(len(paths))])
    ticks = 0.42 if len(paths) <= 64 else 0.5
    rim = 1.6 if len(paths) <= 64 else 0.7
    many = int(np.count_nonzero(shown)) > _MANY_MARKS
    for mask, colour, line in (
        (shown & ~sent.rtx & ~sent.lost, BLUE, 0.5),
        (shown & sent.rtx, GREEN, 1.1),
        (shown & sent.lost, RED, 1.1),
    ):
        x, y = (sent.t_ns[mask] - zero) / 1e6, row_of[sent.path[mask]]
        axes.add_collection(
            LineCollection(
                [((a, b - ticks), (a, b + ticks)) for a, b in zip(x, y, strict=True)],
                colors=colour,
                linewidths=line,
                rasterized=many,
            )
        )
    by_ev = {path.ev: rows[index] for index, path in enumerate(paths)}
    for ev, start, end in _retired(events, zero + low, zero + high):
        if ev in by_ev:
            axes.barh(
                by_ev[ev],
                (end - start) / 1e6,
                left=(start - zero) / 1e6,
                height=0.96,
                color="#DDDDDD",
                zorder=0.5,
            )
    for index, path in enumerate(paths):
        if fault.breaks(path):
            row = rows[index]
            for edge in (row - 0.5, row + 0.5):
                axes.plot([0, (healed - zero) / 1e6], [edge] * 2, color=RED, linewidth=rim, zorder=3)
    axes.axvline(0, color=RED, linewidth=0.9, zorder=0.8)
    if low < healed - zero < high:
        axes.axvline((healed - zero) / 1e6, color=DARK, linewidth=0.9, linestyle="--", zorder=0.8)
    _label_planes(axes, trace, rows)
    axes.set_xlim(low / 1e6, high / 1e6)
    axes.set_ylim(len(paths) - 0.4, -0.6)
    axes.set_xlabel("time since the link was cut (ms)")
    axes.set_title(f"{title}: EVs in use, a row each\n{fault.where} cut, trial {trial.index + 1}")
    axes.legend(
        handles=[
            Line2D([], [], color=BLUE, marker="|", linestyle="", label="packet sent"),
            Line2D([], [], color=RED, marker="|", linestyle="", label="lost"),
            Line2D([], [], color=GREEN, marker="|", linestyle="", label="retransmission"),
            Patch(color="#DDDDDD", label="EV retired"),
            Line2D([], [], color=RED, linewidth=1.6, label="path cut"),
            Line2D([], [], color=DARK, linestyle="--", linewidth=0.9, label="link healed"),
        ],
        loc="upper left",
        bbox_to_anchor=(1.0, 1.0),
    )
    return figure


def _activity_span(trial: Trial, events: EventLog, healed_ns: int) -> tuple[int, int]:
    """From a little before the cut until the EVs are back, in ns since the cut."""
    zero = trial.fault.middle_ns
    back = [event.t_ns for event in events.between("EvRestored", healed_ns, trial.window_ns[1])]
    end = max([healed_ns, *back]) - zero
    return -int(end * 0.2), int(end * 1.15)


def _retired(events: EventLog, start_ns: int, end_ns: int) -> list[tuple[int, int, int]]:
    """(EV, from, to) of the times out of use that touch the span, clipped to it."""
    since: dict[int, int] = {}
    spans = []
    for event in events.events:
        ev = event.int_field("ev")
        if ev is None:
            continue
        if event.name == "EvRetired":
            since.setdefault(ev, event.t_ns)
        elif event.name == "EvRestored" and ev in since:
            spans.append((ev, since.pop(ev), event.t_ns))
    spans += [(ev, t_ns, end_ns) for ev, t_ns in since.items()]
    return [(ev, max(a, start_ns), min(b, end_ns)) for ev, a, b in spans if a < end_ns and b > start_ns]


def _label_planes(axes: Axes, trace: Trace, rows: dict[int, int]) -> None:
    """Names the EVs where there is room for it, and the planes in any case."""
    planes: dict[int, list[int]] = {}
    for index, path in enumerate(trace.paths):
        planes.setdefault(path.plane, []).append(rows[index])
    for group in list(planes.values())[:-1]:
        axes.axhline(max(group) + 0.5, color=GREY, linewidth=0.6)
    if len(rows) <= 40:
        places = sorted((row, trace.paths[index]) for index, row in rows.items())
        axes.set_yticks([row for row, _ in places])
        axes.set_yticklabels([_row_label(path) for _, path in places], fontsize=7)
    else:
        axes.set_yticks([sum(group) / len(group) for group in planes.values()])
        axes.set_yticklabels([f"plane {plane}" for plane in planes])
    axes.tick_params(axis="y", length=0)


def _row_label(path: NetworkPath) -> str:
    return f"plane {path.plane}" if path.t1 is None else f"plane {path.plane}, T1 {path.t1}"


def draw_cdf(trials: Sequence[Trial], title: str) -> Figure:
    """How detect, switch and whole spread over the trials, on a logarithmic axis."""
    figure = new_figure(7.2, 3.8)
    axes = figure.subplots()
    curves = {name: [us for trial in trials if (us := trial.times()[name].us) is not None] for name in TIMES}
    hits = [trial.first_hit_ns / 1000 for trial in trials if trial.first_hit_ns is not None]
    # a time of zero has no place on a logarithmic axis: what is below the decade of the fastest detection
    # stands at the left edge
    fastest = min(us for name in ("detect", "whole") for us in [*curves[name], np.inf])
    left = 10.0 ** np.floor(np.log10(fastest)) if 1 < fastest < np.inf else 1.0
    _cdf(axes, hits, left, "first packet lost", color=GREY, linewidth=1.0)
    for name, values in curves.items():
        median = f"{_thousands(float(np.median(values)), 0)} \N{MICRO SIGN}s" if values else "-"
        label = f"{name}: n {len(values)}, median {median}"
        _cdf(
            axes, values, left, label, color=_TIME_COLOURS[name], linestyle=_TIME_STYLES[name], linewidth=1.8
        )
    axes.set_xscale("log")
    axes.set_xlim(left=left)
    axes.set_ylim(0, 1.02)
    below = any(us < left for us in (*hits, *(us for values in curves.values() for us in values)))
    note = f"; below {_thousands(left, 0)} at the left edge" if below else ""
    axes.set_xlabel(f"time since the link was cut (\N{MICRO SIGN}s, logarithmic{note})")
    axes.set_ylabel("share of trials")
    axes.xaxis.set_major_formatter(FuncFormatter(_thousands))
    axes.grid(visible=True, which="both", color="#EEEEEE", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_title(f"{title}: recovery times")
    axes.legend(loc="upper left")
    return figure


def _cdf(axes: Axes, values: Sequence[float], left: float, label: str, **style: Any) -> None:
    if not values:
        return
    x = np.maximum(np.sort(values), left)
    y = np.arange(len(values) + 1) / len(values)
    axes.step(np.concatenate([x[:1], x]), y, where="post", label=label, **style)
