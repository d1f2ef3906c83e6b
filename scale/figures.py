"""Figures 4, 6, 7 and 8 of the paper: a simple model of the fabric, next to the paper's values.

The paper's values are from production clusters whose traffic is not published. So the model has assumed
inputs, which `Figures.inputs` lists. Two inputs are fitted and marked as fitted. Each `Row` compares a value
of the paper with the model, and states whether the model explains this value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from mrclab.scale.fabric import Design
from mrclab.scale.failures import Floats
from mrclab.scale.parts import Parts

PACKET_BITS = 8 * 4096
PLANES, EVS = 4, 128
NICS_PER_NODE = 4

FIG4_NICS = 75_000 // NICS_PER_NODE
"""The number of NICs in figure 4, which counts one of the four NICs of each node."""
FIG4_PAPER: tuple[tuple[float, float], ...] = (
    (3.36, 9.2e5),
    (3.86, 6.2e5),
    (4.36, 1.5e4),
    (4.86, 7.3e3),
    (5.9, 4.9e3),
    (7.0, 2.7e3),
    (8.9, 7.5e3),
    (10.0, 1.6e3),
)
"""Pairs of minute and lost packets per second, read from the plot."""
FIG4_START_MIN, FIG4_RAMP_MIN = 3.2, 1.0
FIG4_DEAD_PATHS = 0.03  # fitted to figure 4
FIG4_QPS = 500  # fitted to figure 4
FLAPS_PER_MINUTE = 4.2

FIG6_NICS, FIG6_BPS = 50_000, 7.0e15
FIG6_PAPER: tuple[tuple[float, float], ...] = ((32.0, 7.0), (33.0, 5.1), (34.0, 7.0))
FIG7_LOSSES, FIG7_BIN_S = 7_000, 30
FIG8_NICS, FIG8_BPS, FIG8_LOSSES = 75_000, 12.4e15, 580_000


@dataclass(frozen=True, slots=True)
class Row:
    """One quantity of a figure: the paper's value, the model's value, and the conclusion."""

    figure: int
    quantity: str
    paper: str
    model: str
    says: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of the model over minutes, and the paper's points of the same quantity."""

    figure: int
    what: str
    minutes: Floats
    model: Floats
    paper: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """All rows and curves, and the inputs of the model in words."""

    rows: tuple[Row, ...]
    curves: tuple[Curve, ...]
    inputs: Mapping[str, str]


def figures_at_scale(parts: Parts, rng: np.random.Generator) -> Figures:
    """Return the model's values for all figures.

    Raise InputError if a fabric of 4 planes cannot be built with the switch and NIC in ``parts``.
    """
    t1s = Design(2, PLANES, parts).built().tier_sizes[-1]
    start = _fig4(rng, t1s)
    dip, blind_s = _fig6()
    rows = (*_fig4_rows(start, t1s), *_fig6_rows(dip), _fig7_row(blind_s), *_fig8_rows(t1s))
    inputs = {
        "planes, T1s in each, EVs": f"{PLANES}, {t1s}, {EVS} active: with these a quarter of the queue pairs "
        "use a T1, as in figure 8",
        "packets": "4 KiB of payload each",
        "dead paths (fitted)": f"{FIG4_DEAD_PATHS:.0%}: a queue pair then loses fewer than 5 packets "
        "at the start, as the paper says",
        "queue pairs of a NIC (fitted)": f"{FIG4_QPS}: the area under figure 4, over the losses of each",
        "flaps": f"{FLAPS_PER_MINUTE} a minute (figure 5)",
        "bins of figure 7": f"{FIG7_BIN_S} s",
    }
    return Figures(rows, (start, dip), MappingProxyType(inputs))


def losses_of_qps(number: int, rng: np.random.Generator) -> Floats:
    """Return the number of packets that each of ``number`` queue pairs loses until all its EVs work.

    Each EV on a dead path costs one packet, and a new EV replaces it. So the number of lost packets is the
    number of failures before ``EVS`` successes. The mean is EVs * dead / (1 - dead).
    """
    return rng.negative_binomial(EVS, 1 - FIG4_DEAD_PATHS, number).astype(np.float64)


def _fig4(rng: np.random.Generator, t1s: int) -> Curve:
    """Return the packets lost per second in the minutes of figure 4.

    Each queue pair starts at a random time within the job's first minute.
    """
    sample = 200_000
    minutes = np.linspace(FIG4_START_MIN, 10.5, 74)
    width = minutes[1] - minutes[0]
    first = FIG4_START_MIN + FIG4_RAMP_MIN * rng.uniform(0, 1, sample)
    lost, _ = np.histogram(
        first,
        bins=np.append(minutes, minutes[-1] + width) - width / 2,
        weights=losses_of_qps(sample, rng),
    )
    scale = FIG4_NICS * FIG4_QPS / sample / (60 * width)
    return Curve(4, "losses in a second", minutes, lost * scale + _flap_losses(t1s), FIG4_PAPER)


def _flap_losses(t1s: int) -> float:
    """Return the number of packets that flaps lose per second.

    In a flap, each EV over the link loses one packet. EVs of both directions use the link.
    """
    evs_on_link = 2 * t1s * FIG4_QPS * EVS / (PLANES * t1s)  # in a plane, a T0 has as many NICs as uplinks
    return FLAPS_PER_MINUTE / 60 * evs_on_link / NICS_PER_NODE


def _fig4_rows(start: Curve, t1s: int) -> tuple[Row, ...]:
    per_qp = EVS * FIG4_DEAD_PATHS / (1 - FIG4_DEAD_PATHS)
    peak = float(start.model.max())
    return (
        Row(4, "losses of a queue pair at the start", "fewer than 5", f"{per_qp:.1f}", "fitted"),
        Row(
            4,
            "losses in a second, first minute",
            "9.2e5, 6.2e5",
            f"{peak:.2g}",
            "fitted in area; the model's start is even, the paper's is steeper",
        ),
        Row(
            4,
            "fall within the next minute",
            f"{9.2e5 / 1.5e4:.0f}-fold",
            f"{peak / float(start.model[-1]):,.0f}-fold",
            "explained: each dead EV is tried once",
        ),
        Row(
            4,
            "losses in a second after ten minutes",
            "1.2e3 to 2e3",
            f"{_flap_losses(t1s):.2g}",
            "flaps alone give less: the rest (probes of dead paths, late queue pairs) is not modelled",
        ),
    )


def _fig6() -> tuple[Curve, float]:
    """Return the throughput around an optical module's flap, and the time (s) of NICs' use of a dead port."""
    minutes = np.linspace(30.0, 36.0, 121)
    down = (minutes >= 32.5) & (minutes < 33.5)
    petabits = np.where(down, FIG6_BPS * (1 - 1 / PLANES), FIG6_BPS) / 1e15
    rate = FIG6_BPS / FIG6_NICS / PLANES / PACKET_BITS  # packets per second for one port
    blind_s = FIG7_LOSSES * FIG7_BIN_S / rate
    return Curve(6, "throughput (Pbit/s)", minutes, petabits, FIG6_PAPER), blind_s


def _fig6_rows(dip: Curve) -> tuple[Row, ...]:
    low = float(dip.model.min())
    return (
        Row(
            6,
            "throughput while a T0 module flaps",
            "7.0 to 5.1 Pbit/s",
            f"7.0 to {low:.2f} Pbit/s",
            "explained within 3 %: the job runs at the speed of a NIC on 3 of 4 planes",
        ),
        Row(
            6,
            "smaller dips",
            "6.3 to 6.5 Pbit/s",
            "-",
            "not explained: a lost port costs a quarter on 4 planes, unless it was shorter than a bin",
        ),
    )


def _fig7_row(blind_s: float) -> Row:
    return Row(
        7,
        "losses in a second and node",
        f"up to {FIG7_LOSSES:,}",
        f"{blind_s:.2g} s of sending to a dead port",
        "the losses are what one port gets in that time at the job's average rate; the paper has the peers "
        "move within a few seconds",
    )


def _fig8_rows(t1s: int) -> tuple[Row, ...]:
    per_qp = EVS / (PLANES * t1s)
    qps = FIG8_LOSSES / (FIG8_NICS * per_qp)
    through = FIG8_BPS / (PLANES * t1s)
    return (
        Row(
            8, "queue pairs that the T1's death hits", "a quarter", f"{per_qp:.0%}", "explained: EVs / paths"
        ),
        Row(
            8,
            "packets lost",
            f"{FIG8_LOSSES:,}",
            f"{qps:.0f} busy queue pairs a NIC",
            "if each EV over the T1 loses one packet. It is "
            f"{1e3 * FIG8_LOSSES * PACKET_BITS / through:.2g} ms of the T1's traffic",
        ),
        Row(
            8,
            "throughput in that minute",
            "12.4 to 10.1 Pbit/s (-19 %)",
            f"-{1 / t1s:.1%}",
            "not explained: a T1 is a small share of a plane, and its EVs are replaced at once",
        ),
    )
