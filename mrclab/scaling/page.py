"""The page of a study of scale: one file that needs no network, for light and dark screens and phones."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from mrclab.experiments.report.page.render import drawn, render
from mrclab.scale.study import Answer
from mrclab.scaling.pictures import pictures_of

_CAPTIONS = {
    "cost": "Switches, modules and cables over NICs. With more planes a chip has more ports, so "
    "that fewer tiers reach as far.",
    "blast": "The first fabric sprays over its planes; the second is conventional.",
    "at-once": "Bars: the drawn lives. Dashed: the closed form.",
    "goodput": "Each mark is one drawn life of the job.",
    "figure-4": "Losses in a second at the start of a job on a fabric with dead paths, of one NIC in four.",
    "figure-6": "A module at a T0 flaps, and takes the links of four NICs with it.",
    "shares": "MRC spreads over the links that work; flows by ECMP collide even on a whole fabric.",
}
_PLACES = {
    "fabrics": ("cost",),
    "job": ("goodput", "at-once"),
    "figures": ("figure-4", "figure-6"),
    "shares": ("shares",),
}


def write_page(out: Path, found: Answer) -> None:
    """Write report.html."""
    pictures = pictures_of(found)
    question = found.question
    sections: list[dict[str, Any]] = []
    blast_shown = False
    for table in found.tables:
        names = [name for name in _PLACES.get(table.name, ()) if name in pictures]
        if table.name.startswith("blast-") and "blast" in pictures:
            names, blast_shown = [] if blast_shown else ["blast"], True
        sections.append(
            {
                "table": table,
                "pictures": [
                    {"svg": drawn(pictures[name]), "caption": _CAPTIONS.get(name, "")} for name in names
                ],
            }
        )
    context = {
        "heading": f"{question.nics:,} NICs on {question.planes} planes",
        "parts": question.parts.name,
        "job": f"{question.job_nics:,} GPUs for {question.days:g} days",
        "command": shlex.join(["mrclab", *sys.argv[1:]]),
        "seed": question.seed,
        "sections": sections,
        "doubtful": False,
    }
    (out / "report.html").write_text(render("scale.html", context), encoding="utf-8", newline="\n")
