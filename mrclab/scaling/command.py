"""``mrclab scale``: read the input of a scale study, compute the study, print it and write its page."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mrclab.arguments.runs import PIECES
from mrclab.linux.errors import InputError
from mrclab.output import directory
from mrclab.scale.parts import PARTS, load_parts
from mrclab.terminal import terminal

if TYPE_CHECKING:
    from mrclab.scale.study import Question


def scale(args: argparse.Namespace) -> int:
    """Compute the scale study that the arguments describe, print it and write its page.

    Raise InputError if an argument is not valid or the fabric cannot be built.
    """
    if args.print_parts:
        print(PARTS.text(args.parts)[0], end="")
        return 0
    question = question_of(args)
    # Imported only here, because numpy and matplotlib load slowly: errors in the input must appear quickly.
    from rich.progress import Progress, TextColumn, TimeElapsedColumn

    from mrclab.scale.study import answer, steps_of
    from mrclab.scaling.page import write_page
    from mrclab.scaling.tables import print_tables

    question.check()  # before the output directory is created
    console = terminal()
    columns = (TextColumn("{task.completed}/{task.total} {task.description}"), TimeElapsedColumn())
    with directory(args.out, "scale") as out:
        with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
            task = bar.add_task("", total=steps_of(question), completed=-1)
            found = answer(question, lambda what: bar.update(task, advance=1, description=what))
        print_tables(found.tables, console)
        write(out, json.dumps(found.to_dict(), indent=1))
        write_page(out, found)
    console.print(f"page: {out / 'report.html'}")
    return 0


def write(out: Path, text: str) -> None:
    """Write scale.json."""
    (out / "scale.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def question_of(args: argparse.Namespace) -> Question:
    """Return the study's input: fabric, job, random runs. Raise InputError if an argument is not valid."""
    for option in ("nics", "planes", "job", "runs"):
        if getattr(args, option) < 1:
            raise InputError(f"it must be at least 1, not {getattr(args, option)}", where=f"--{option}")
    if not 0 < args.days <= 3650:
        raise InputError(f"it must be from 0 to 3650, not {args.days:g}", where="--days")
    if args.runs > 10_000:
        raise InputError(f"it must be at most 10000, not {args.runs}", where="--runs")
    if args.seed < 0:
        raise InputError(f"it must be at least 0, not {args.seed}", where="--seed")
    only = tuple(dict.fromkeys(word.strip() for word in args.only.split(",")))
    for word in only:
        if word not in PIECES:
            raise InputError(f"no part '{word}': there are {', '.join(PIECES)}", where="--only")
    parts = load_parts(args.parts)

    from mrclab.scale.study import Question

    return Question(
        parts=parts,
        nics=args.nics,
        planes=args.planes,
        tiers=args.tiers,
        job_nics=args.job,
        days=args.days,
        runs=args.runs,
        seed=args.seed,
        dead_links=_numbers(args.dead_links),
        only=only,
    )


def _numbers(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 12 for word in words):
        raise InputError(f"it must be whole numbers such as 0,100, not '{text}'", where="--dead-links")
    return tuple(sorted({int(word) for word in words}))
