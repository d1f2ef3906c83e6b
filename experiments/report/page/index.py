"""One page over many runs: the claim of each, and whether it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mrclab.experiments.report.page.render import render
from mrclab.experiments.report.page.shared import judgement
from mrclab.experiments.report.table import headline


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the index: ``link`` leads to its page, relative to the index."""

    link: str
    name: str
    finished: str
    claim: str
    found: str
    verdict: str
    colour: str
    paper: str
    where: str
    valid: bool


def row_of(result: Mapping[str, Any], link: str) -> Row:
    """Return a run's row, from its result."""
    judged = judgement(result)
    return Row(
        link=link,
        name=result["scenario"],
        finished=result["finished"][:16].replace("T", " "),
        claim=result.get("claim") or result.get("parameters", {}).get("description", ""),
        found=judged.found or headline(result),
        verdict=judged.verdict or "not judged",
        colour=judged.colour,
        paper=judged.paper,
        where=f"{result['topology']}, {result['target']}",
        valid=bool(result["valid"]),
    )


def index_page(rows: Sequence[Row], heading: str) -> str:
    """Return the page."""
    context = {"rows": [asdict(row) for row in rows], "heading": heading, "doubtful": False}
    return render("index.html", context)
