"""Write the files that show a result (pictures, page, table of trials), and an index page of many runs.

All files are made from result.json alone.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrclab.experiments.report.page.content import result_page
from mrclab.experiments.report.page.render import render
from mrclab.experiments.report.page.shared import judgement
from mrclab.experiments.report.pictures import draw_all
from mrclab.experiments.report.table import headline
from mrclab.experiments.result.file import load_result
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, build_fabric, load_fabric


@dataclass(frozen=True, slots=True)
class Row:
    """A run in the index page. ``link`` is the path of the run's page, relative to the index."""

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
    """Return a run's row in the index page."""
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
    """Return the HTML of the index page."""
    context = {"rows": [asdict(row) for row in rows], "heading": heading, "doubtful": False}
    return render("index.html", context)


PAGE, TABLE = "report.html", "trials.csv"
FIRST = ("transport", "repetition", "trial", "fault.kind", "fault.where", "fault.at_us", "felt")
LAST = ("rule",)


def write_all(
    out: Path, draw: Callable[[Path, Mapping[str, Any]], object] | None = None
) -> tuple[Path, Path]:
    """Draw the pictures, and write report.html and trials.csv. Return the paths of these two files.

    ``out`` is the result's directory. ``draw`` is a function to use in place of `draw_all`. Raise InputError
    if the directory has no result, or if a file cannot be written.
    """
    result = load_result(out)
    page, table = out / PAGE, out / TABLE
    (draw or draw_all)(out, result)
    _write(page, result_page(out, result, _fabric(result)))
    write_trials(table, result["trials"])
    return page, table


def write_index(directories: Sequence[Path], out: Path, heading: str = "Runs") -> Path:
    """Write an index page of several runs to ``out``. Raise InputError if a result cannot be read."""
    rows = []
    for directory in directories:
        link = os.path.relpath(directory / PAGE, out.parent)
        rows.append(row_of(load_result(directory), Path(link).as_posix()))
    _write(out, index_page(rows, heading))
    return out


def write_trials(path: Path, trials: Sequence[Mapping[str, Any]]) -> None:
    """Write the trials as CSV, one line for each trial. Nested keys are joined by dots. Lists are skipped.

    The columns that name a trial come first. The column ``rule``, which has long text, comes last.
    """
    flat = [_flat(trial) for trial in trials]
    every = dict.fromkeys(name for row in flat for name in row)
    names = [name for name in FIRST if name in every]
    names += [name for name in every if name not in (*FIRST, *LAST)]
    names += [name for name in LAST if name in every]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(flat)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            row |= _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            row[prefix + key] = value
    return row


def _fabric(result: Mapping[str, Any]) -> Fabric | None:
    """Return the run's fabric, or None if its topology is not available any more."""
    try:
        asked = result["parameters"]
        text, where = asked["topology"], asked.get("topology_where")
        fabric = build_fabric(text, where) if where else load_fabric(text)
    except (InputError, KeyError, TypeError):
        return None
    return fabric if fabric.name == result["topology"] else None


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise InputError(f"cannot write '{path}': {error.strerror}") from None
