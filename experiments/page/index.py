"""One page over many runs: what each shows, and whether it came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.page.render import render
from experiments.table import us

_COLOURS = {"holds": "good", "does not hold": "bad"}


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the index: ``link`` leads to its page, relative to the index."""

    link: str
    name: str
    finished: str
    claim: str
    found: str
    verdict: str
    paper: str
    where: str
    valid: bool

    @property
    def colour(self) -> str:
        """The style of the verdict."""
        return _COLOURS.get(self.verdict, "unknown")


def row_of(result: Mapping[str, Any], link: str) -> Row:
    """A run's row, from its result.json."""
    verdict = result.get("verdict") or {}
    return Row(
        link=link,
        name=result["scenario"],
        finished=result["finished"][:16].replace("T", " "),
        claim=verdict.get("claim") or result.get("parameters", {}).get("description", ""),
        found=verdict.get("found") or _recovery(result),
        verdict=verdict.get("verdict", "no verdict"),
        paper=verdict.get("paper", ""),
        where=f"{result['topology']}, {result['target']}",
        valid=bool(result["valid"]),
    )


def _recovery(result: Mapping[str, Any]) -> str:
    whole = result.get("summary", {}).get("whole_us")
    if not whole or not whole["n"]:
        return ""
    return f"whole after {us(whole['p50'])} µs in the median, {us(whole['max'])} µs at worst, n {whole['n']}"


def index_page(rows: Sequence[Row], heading: str) -> str:
    """The page."""
    return render(
        "index.html",
        {
            "rows": [asdict(row) | {"colour": row.colour} for row in rows],
            "heading": heading,
            "doubtful": False,
        },
    )
