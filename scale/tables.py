"""The tables of a scale report as plain text cells, so that terminal and page show the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mrclab.scale.blast import blast_radius
from mrclab.scale.claims import Claim
from mrclab.scale.fabric import Built
from mrclab.scale.failures import Floats
from mrclab.scale.figures import Figures
from mrclab.scale.monte_carlo import Study


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the first column is of words, the columns named in ``long`` hold sentences."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    long: tuple[str, ...] = ()


def number(value: float) -> str:
    """Return a number in the digits that matter: ``131,072``, ``3.5``, ``0.0039``."""
    if value == 0 or ((abs(value) >= 100 or float(value).is_integer()) and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def percent(value: float) -> str:
    """Return a share as a percentage in the digits that matter: ``12.5 %``, ``0.39 %``, ``0.0001 %``."""
    hundredths = 100 * value
    if hundredths == 0 or hundredths >= 0.005:
        return f"{hundredths:.3g} %"
    return f"{hundredths:.1e} %"


def designs_table(fabrics: Sequence[Built]) -> Table:
    """Return sizes, power and cost of fabrics side by side."""
    lines: dict[str, Callable[[Built], str]] = {
        "NICs": lambda b: number(b.nics),
        "room for": lambda b: number(b.design.most_nics),
        "ports of a switch (k)": lambda b: f"{b.design.radix} x {b.design.port_bps / 1e9:g}G",
        "switches": lambda b: number(b.switches),
        "switches per NIC, x 64": lambda b: f"{64 * b.switches / b.nics:.2f}",
        "of a plane, T0 first": lambda b: " + ".join(number(size) for size in b.tier_sizes),
        "NICs under a T0": lambda b: number(b.nics_per_t0),
        "links to NICs": lambda b: number(b.host_links),
        "links between switches": lambda b: number(b.fabric_links),
        "full-rate links of a NIC": lambda b: f"{b.full_rate_hops:.2f}",
        "optical modules": lambda b: number(b.modules),
        "longest path, switches": lambda b: number(b.longest_path),
        "paths in a plane, in all": lambda b: f"{number(b.paths_per_plane)}, {number(b.paths)}",
        "power, MW": lambda b: f"{b.power_w / 1e6:.2f}",
        "power of a NIC's share, W": lambda b: f"{b.power_w / b.nics:.0f}",
        "cost, million": lambda b: f"{b.cost / 1e6:,.0f}",
        "cost of a NIC's share": lambda b: f"{b.cost / b.nics:,.0f}",
    }
    return Table(
        "fabrics",
        "Fabrics",
        ("", *(fabric.design.name for fabric in fabrics)),
        tuple((what, *(text(fabric) for fabric in fabrics)) for what, text in lines.items()),
        "Non-blocking; NICs themselves are left out of power and cost. Costs are assumptions of the table of "
        "parts: read ratios.",
    )


def claims_table(rows: Sequence[Claim]) -> Table:
    """Return claims with what follows from the formulae."""
    return Table(
        "claims",
        "Claims, recomputed",
        ("claim", "quoted", "derived", "outcome", "derivation", "source"),
        tuple((c.text, c.quoted, c.derived, c.outcome, c.derivation, c.source) for c in rows),
        long=("derivation",),
    )


def blast_table(built: Built) -> Table:
    """Return the loss by one failure of each kind."""
    rows = tuple(
        (
            row.kind,
            number(row.count),
            number(row.nics),
            percent(row.of_each),
            percent(row.of_fabric),
            row.note,
        )
        for row in blast_radius(built)
    )
    return Table(
        f"blast-{built.design.tiers}-{built.design.planes}",
        f"Blast radius: {built.design.name}, {number(built.nics)} NICs",
        ("one failure of a", "there are", "NICs hit", "each loses", "of that tier", "note"),
        rows,
        "Each loses: at most, with its planes kept equal, as MRC keeps them.",
        long=("note",),
    )


def failures_table(study: Study) -> Table:
    """Return failures of each kind in a job's life, drawn and in closed form."""
    rows = tuple(
        (
            count.kind.name.replace("_", " "),
            number(count.kind.count),
            number(round(count.events, 1)),
            number(round(count.events_expected, 1)),
            f"{count.out_mean:.3g}",
            f"{count.out_expected:.3g}",
            number(count.out_p99),
            number(count.out_most),
        )
        for count in study.counts
    )
    return Table(
        f"failures-{study.name}",
        f"Failures in {study.hours / 24:g} days: {study.built.design.name}, {number(study.built.nics)} NICs",
        ("of a", "there are", "drawn", "expected", "out, mean", "expected", "p99", "most"),
        rows,
        f"Means of {len(study.lives)} drawn lives; expected: rate x time, and rate x repair (M/G/infinity). "
        "Upper: switches above the T0s.",
    )


def job_table(studies: Sequence[Study]) -> Table:
    """Return the failures' effect on the job, for several fabrics and transports."""

    def spread(values: Floats) -> str:
        low, middle, high = np.percentile(values, (5, 50, 95))
        return f"{percent(middle)} ({percent(low)} to {percent(high)})"

    lines: dict[str, Callable[[Study], str]] = {
        "fabric": lambda s: s.built.design.name,
        "restarts by the network": lambda s: number(round(float(s.restarts.mean()), 1)),
        "the same, closed form": lambda s: number(round(s.restarts_expected, 1)),
        "hours between restarts": lambda s: (
            number(round(s.hours / s.restarts_expected, 1)) if s.restarts_expected else "-"
        ),
        "time not lost to restarts": lambda s: percent(float(s.useful.mean())),
        "the same, closed form (Daly)": lambda s: percent(s.useful_expected),
        "time stalled": lambda s: percent(float(s.stalled.mean())),
        "slowest NIC's bandwidth, mean": lambda s: percent(float(s.capacity.mean())),
        "the same, in the worst 1 %": lambda s: percent(float(np.percentile(s.capacity, 1))),
        "goodput, network alone": lambda s: spread(s.goodput),
        "goodput, with GPUs and the rest": lambda s: spread(s.goodput_with_others),
    }
    first = studies[0]
    return Table(
        "job",
        f"A synchronous job of {number(first.built.nics)} GPUs over {first.hours / 24:g} days",
        ("", *(study.name for study in studies)),
        tuple((what, *(text(study) for study in studies)) for what, text in lines.items()),
        f"{len(first.lives)} drawn lives; goodput: median, and 5th to 95th percentile. Stalls, restarts and "
        "failure rates are inputs (the table of parts), not results.",
    )


def figures_table(figures: Figures) -> Table:
    """Return the paper's production figures next to the model's."""
    inputs = "; ".join(f"{name}: {text}" for name, text in figures.inputs.items())
    return Table(
        "figures",
        "Figures 4, 6, 7 and 8 at the paper's scale",
        ("figure", "quantity", "paper", "model", "what that says"),
        tuple((str(row.figure), row.quantity, row.paper, row.model, row.says) for row in figures.rows),
        f"Inputs. {inputs}.",
        long=("what that says",),
    )
