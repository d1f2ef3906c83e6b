"""One study of scale: the results of `mrclab scale`, part by part, as values to save and plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mrclab.scale.blast import blast_radius
from mrclab.scale.claims import claims
from mrclab.scale.ecmp import ecmp_permutation
from mrclab.scale.fabric import MAX_PLANES, Built, Design, smallest_design
from mrclab.scale.figures import Figures, figures_at_scale
from mrclab.scale.monte_carlo import Study, study
from mrclab.scale.parts import Parts
from mrclab.scale.shares import Fabric, Shares, all_to_all, max_min, permutation
from mrclab.scale.tables import (
    Table,
    blast_table,
    claims_table,
    designs_table,
    failures_table,
    figures_table,
    job_table,
    number,
    percent,
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
        """The requested fabric. Raise InputError if there is none."""
        if self.tiers is None:
            return smallest_design(self.nics, self.planes, self.parts).built(self.nics)
        return Design(self.tiers, self.planes, self.parts).built(self.nics)

    @property
    def conventional(self) -> Built:
        """The fabric of one plane for as many NICs."""
        return smallest_design(self.nics, 1, self.parts).built(self.nics)

    def check(self) -> None:
        """Raise InputError if a requested fabric cannot be built."""
        for built in (self.chosen, self.conventional, self.of_job(self.planes), self.of_job(1)):
            built.design.check()

    def of_job(self, planes: int) -> Built:
        """Return the fabric of fewest tiers for the job. Raise InputError if there is none."""
        return smallest_design(self.job_nics, planes, self.parts).built(self.job_nics)


@dataclass(frozen=True, slots=True)
class ShareRow:
    """One traffic pattern with some dead links: flows' rates as shares of their rates on a whole fabric."""

    pattern: str
    dead: int
    nics: int
    mean: float
    p1: float
    least: float
    steps: int


@dataclass
class Answer:
    """The results. Parts that were not requested are missing."""

    question: Question
    tables: list[Table] = field(default_factory=list)
    fabrics: list[Built] = field(default_factory=list)
    studies: list[Study] = field(default_factory=list)
    shares: list[ShareRow] = field(default_factory=list)
    figures: Figures | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, for scale.json."""
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
    """Compute the answer; call ``step`` with the name of each step.

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
    """Return how many steps ``answer`` announces."""
    two_tiers = question.chosen.design.tiers == 2
    steps = {"fabric": 1, "claims": 0, "failures": 2, "figures": 1, "shares": 0}
    for built, patterns in ((question.chosen, 3), (question.conventional, 1)):
        steps["shares"] += patterns * len(_dead_that_fit(question, built)) if two_tiers else 0
    return sum(steps[part] for part in question.only)


def cost_curves(parts: Parts, sizes: Sequence[int]) -> dict[str, list[tuple[int, float]]]:
    """Return the cost of a NIC's share by NICs, for each number of planes that the parts allow."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for planes in (1, 2, 4, 8, MAX_PLANES):
        points = []
        for nics in sizes:
            built = smallest_design(nics, planes, parts).built(nics)
            points.append((nics, built.cost / nics))
        curves[f"{planes} plane{'s' if planes > 1 else ''}"] = points
    return curves


def _side_by_side(question: Question, chosen: Built, conventional: Built) -> list[Built]:
    """Return the fabric asked for, that of one plane, and the largest with three tiers of one plane."""
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
