"""One study of scale: the results of `mrclab scale`, part by part, and their tables.

Results are values to save and plot. The cells of tables are plain text, so the terminal and the page show the
same text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mrclab.scale.claims import Claim, claims
from mrclab.scale.fabric import MAX_PLANES, Built, Design, blast_radius, smallest_design
from mrclab.scale.failures import Floats
from mrclab.scale.figures import Figures, figures_at_scale
from mrclab.scale.job import Study, study
from mrclab.scale.parts import Parts
from mrclab.scale.shares import Fabric, Shares, all_to_all, ecmp_permutation, max_min, permutation


@dataclass(frozen=True, slots=True)
class Table:
    """A table. The first column has names; the columns in ``long`` have sentences."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    long: tuple[str, ...] = ()


def number(value: float) -> str:
    """Return a number with about three digits: ``131,072``, ``3.5``, ``0.0039``."""
    if value == 0 or ((abs(value) >= 100 or float(value).is_integer()) and abs(value) < 1e15):
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def percent(value: float) -> str:
    """Return a share as a percentage with about three digits: ``12.5 %``, ``0.39 %``, ``0.0001 %``."""
    hundredths = 100 * value
    if hundredths == 0 or hundredths >= 0.005:
        return f"{hundredths:.3g} %"
    return f"{hundredths:.1e} %"


def designs_table(fabrics: Sequence[Built]) -> Table:
    """Return the sizes, power and cost of several fabrics, one column for each fabric."""
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
    """Return a table of claims and the values derived from the formulas."""
    return Table(
        "claims",
        "Claims, recomputed",
        ("claim", "quoted", "derived", "outcome", "derivation", "source"),
        tuple((c.text, c.quoted, c.derived, c.outcome, c.derivation, c.source) for c in rows),
        long=("derivation",),
    )


def blast_table(built: Built) -> Table:
    """Return a table of the bandwidth that NICs and the fabric lose by one failure of each kind."""
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
    """Return a table of the failures of each kind during a job, from random draws and from formulas."""
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
    """Return a table of the failures' effect on the job, for several fabrics and transports."""

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
    """Return a table of the paper's production figures and the model's values."""
    inputs = "; ".join(f"{name}: {text}" for name, text in figures.inputs.items())
    return Table(
        "figures",
        "Figures 4, 6, 7 and 8 at the paper's scale",
        ("figure", "quantity", "paper", "model", "what that says"),
        tuple((str(row.figure), row.quantity, row.paper, row.model, row.says) for row in figures.rows),
        f"Inputs. {inputs}.",
        long=("what that says",),
    )


PARTS_OF_A_STUDY = ("fabric", "claims", "failures", "figures", "shares")
MRC, CONVENTIONAL = "MRC", "conventional"


@dataclass(frozen=True)
class Question:
    """The input of a study: the fabric, the job, and the number and the seed of the random runs."""

    parts: Parts
    nics: int = 131_072
    planes: int = 8
    tiers: int | None = None
    job_nics: int = 75_000
    days: float = 90.0
    runs: int = 20
    seed: int = 1
    dead_links: tuple[int, ...] = (0, 1, 100, 1_000, 10_000)
    only: tuple[str, ...] = PARTS_OF_A_STUDY

    @property
    def chosen(self) -> Built:
        """The requested fabric. Raise InputError if it is not possible."""
        if self.tiers is None:
            return smallest_design(self.nics, self.planes, self.parts).built(self.nics)
        return Design(self.tiers, self.planes, self.parts).built(self.nics)

    @property
    def conventional(self) -> Built:
        """The fabric of one plane for the same number of NICs."""
        return smallest_design(self.nics, 1, self.parts).built(self.nics)

    def check(self) -> None:
        """Raise InputError if a requested fabric cannot be built."""
        for built in (self.chosen, self.conventional, self.of_job(self.planes), self.of_job(1)):
            built.design.check()

    def of_job(self, planes: int) -> Built:
        """Return the fabric with the fewest tiers for the job. Raise InputError if there is none."""
        return smallest_design(self.job_nics, planes, self.parts).built(self.job_nics)


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One traffic pattern with dead links. Rates are shares of the rates on a fabric without failures."""

    pattern: str
    dead: int
    nics: int
    mean: float
    p1: float
    least: float
    steps: int


@dataclass
class Answer:
    """All results for one `Question`. Results that were not requested are empty."""

    question: Question
    tables: list[Table] = field(default_factory=list)
    fabrics: list[Built] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    shares: list[ShareRow] = field(default_factory=list)
    figures: Figures | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain data, for scale.json."""
        question = self.question
        return {
            "schema": "mrclab.scale/1",
            "question": {
                "parts": question.parts.model_dump(by_alias=True),
                **{
                    name: getattr(question, name)
                    for name in ("nics", "planes", "tiers", "job_nics", "days", "runs", "seed", "only")
                },
            },
            "fabrics": [
                {
                    "name": built.design.name,
                    "nics": built.nics,
                    "switches": built.switches,
                    "fabric_links": built.fabric_links,
                    "host_links": built.host_links,
                    "modules": built.modules,
                    "power_w": built.power_w,
                    "cost": built.cost,
                    "blast_radius": [asdict(row) for row in blast_radius(built)],
                }
                for built in self.fabrics
            ],
            "studies": [
                {
                    "name": found.name,
                    "fabric": found.built.design.name,
                    "counts": [asdict(count) for count in found.counts],
                    "restarts": found.restarts.tolist(),
                    "restarts_expected": found.restarts_expected,
                    "useful_expected": found.useful_expected,
                    "goodput": found.goodput.tolist(),
                    "goodput_with_others": found.goodput_with_others.tolist(),
                }
                for found in self.studies
            ],
            "shares": [asdict(row) for row in self.shares],
            "tables": [asdict(table) for table in self.tables],
        }


def answer(question: Question, step: Callable[[str], None] = lambda _: None) -> Answer:
    """Compute the answer. ``step`` is called with the name of each step, for progress.

    Raise InputError if the fabric cannot be built.
    """
    question.check()
    chosen, conventional = question.chosen, question.conventional
    found = Answer(question)
    if "fabric" in question.only:
        step("fabrics")
        found.fabrics = _side_by_side(question, chosen, conventional)
        found.tables += [designs_table(found.fabrics), blast_table(chosen), blast_table(conventional)]
    if "claims" in question.only:
        found.tables.append(claims_table(claims(question.parts)))
    if "failures" in question.only:
        fabrics = (question.of_job(question.planes), question.of_job(1))
        for name, built, sprays in zip((MRC, CONVENTIONAL), fabrics, (True, False), strict=True):
            step(f"{question.runs} lives of a job, {name}")
            found.studies.append(
                study(
                    name,
                    built,
                    question.parts,
                    sprays=sprays,
                    runs=question.runs,
                    seed=question.seed,
                    days=question.days,
                )
            )
        found.tables += [job_table(found.studies), *(failures_table(each) for each in found.studies)]
    if "figures" in question.only:
        step("figures 4, 6, 7, 8")
        found.figures = figures_at_scale(question.parts, np.random.default_rng(question.seed))
        found.tables.append(figures_table(found.figures))
    if "shares" in question.only and chosen.design.tiers == 2:
        found.shares = _shares(question, chosen, conventional, step)
        found.tables.append(_shares_table(found.shares))
    return found


def steps_of(question: Question) -> int:
    """Return the number of times that ``answer`` calls ``step``."""
    two_tiers = question.chosen.design.tiers == 2
    steps = {"fabric": 1, "claims": 0, "failures": 2, "figures": 1, "shares": 0}
    for built, patterns in ((question.chosen, 3), (question.conventional, 1)):
        steps["shares"] += patterns * len(_dead_that_fit(question, built)) if two_tiers else 0
    return sum(steps[part] for part in question.only)


def cost_curves(parts: Parts, sizes: Sequence[int]) -> dict[str, list[tuple[int, float]]]:
    """Return a curve for each number of planes: pairs of a fabric's size and its cost per NIC."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for planes in (1, 2, 4, 8, MAX_PLANES):
        points = []
        for nics in sizes:
            built = smallest_design(nics, planes, parts).built(nics)
            points.append((nics, built.cost / nics))
        curves[f"{planes} plane{'s' if planes > 1 else ''}"] = points
    return curves


def _side_by_side(question: Question, chosen: Built, conventional: Built) -> list[Built]:
    """Return the chosen and the conventional fabric, to compare both.

    If no fabric of one plane and three tiers has room for all NICs, also return the largest such fabric.
    """
    fabrics = [chosen, conventional]
    largest = Design(3, 1, question.parts).built()
    if largest.nics < question.nics:
        fabrics.append(largest)
    return fabrics


def _dead_that_fit(question: Question, chosen: Built) -> list[int]:
    return [dead for dead in question.dead_links if dead <= chosen.links_per_tier]


def _shares(
    question: Question, chosen: Built, conventional: Built, step: Callable[[str], None]
) -> list[ShareRow]:
    rows = []
    whole = Fabric.of(chosen)
    for dead in _dead_that_fit(question, chosen):
        fabric = whole.with_dead_links(dead, _rng(question.seed, 1))
        flows = permutation(fabric, _rng(question.seed, 2))
        step(f"permutation, {dead:,} dead links")
        rows.append(_row("permutation, MRC even", dead, chosen, max_min(fabric, flows)))
        step(f"permutation, {dead:,} dead links, adaptive")
        rows.append(_row("permutation, MRC adaptive", dead, chosen, max_min(fabric, flows, "adaptive")))
        step(f"all-to-all, {dead:,} dead links")
        rows.append(_row("all-to-all, MRC even", dead, chosen, max_min(fabric, all_to_all(fabric))))
        if dead <= conventional.links_per_tier:
            step(f"permutation by ECMP, {dead:,} dead links")
            shares = ecmp_permutation(conventional, _rng(question.seed, 2), dead)
            rows.append(_row("permutation, ECMP, one plane", dead, conventional, shares))
    return rows


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _row(pattern: str, dead: int, built: Built, shares: Shares) -> ShareRow:
    return ShareRow(pattern, dead, built.nics, shares.total, shares.percentile(1), shares.least, shares.steps)


def _shares_table(rows: Sequence[ShareRow]) -> Table:
    return Table(
        "shares",
        "What flows get with T0-T1 links dead, of a NIC's rate",
        ("traffic", "NICs", "dead links", "mean", "slowest 1 %", "slowest"),
        tuple(
            (
                row.pattern,
                number(row.nics),
                number(row.dead),
                percent(row.mean),
                percent(row.p1),
                percent(row.least),
            )
            for row in sorted(rows, key=lambda row: row.pattern)
        ),
        "Max-min fair shares within 0.1 %. Even: EVs in rotation over all working paths, whatever their "
        "load; adaptive: ECN steers perfectly; MRC lies between. ECMP: a path a flow, after the routing has "
        "converged.",
    )
