"""``mrclab lab``: hand out a lab, check it, pack it."""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from mrclab.lab_grade import grade_command
from mrclab.labs import student
from mrclab.labs.catalogue import all_labs, find, folder_of
from mrclab.labs.grading.scores import require_score, score_of, score_parts, table
from mrclab.labs.judge import judge
from mrclab.labs.model import Lab, Outcome, passed
from mrclab.labs.variants import MARKER, PAGE, USUAL, Variant, student_number
from mrclab.linux.errors import InputError, MachineError, MrclabError
from mrclab.linux.system import is_root
from mrclab.terminal import terminal
from mrclab.testbed.names import by_sudo
from mrclab.version import version

_WIDTH = 78


def lab(args: argparse.Namespace) -> int:
    """Run ``mrclab lab WHAT``; return the exit code: 1 if a check did not pass."""
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "start": _start,
        "check": _check,
        "score": _score,
        "submit": _submit,
        "solution": _solution,
        "grade": grade_command,
    }
    return verbs[args.what](args)


def _list(args: argparse.Namespace) -> int:
    table = Table("lab", "name", "what it is about", "minutes", "needs", box=None, pad_edge=False)
    for found in all_labs():
        fabric = found.spec.topology
        needs = "Python" if fabric is None else "root helps" if found.spec.optional_fabric else "root"
        table.add_row(str(found.number), found.name, found.spec.title, str(found.spec.minutes), needs)
    terminal().print(table)
    print("\nmrclab lab start N | check N | score N | submit N | solution N | grade N DIR")
    return 0


def _start(args: argparse.Namespace) -> int:
    found = find(args.lab)
    _require_modules(found)
    folder = Path(args.folder or found.student_folder)
    variant = Variant(student_number(args.student)) if args.student is not None else USUAL
    files = student.start(found, folder, variant)
    print(f"Lab {found.number}: {found.spec.title} (about {found.spec.minutes} minutes)")
    print(textwrap.fill(found.spec.aim, _WIDTH))
    print(f"\n{folder}/: {', '.join(name for name in files if name != MARKER)}")
    if PAGE in files:
        print(f"{PAGE} has your own values, {variant.student}: read it beside README.md")
    up = _bring_up(found, wanted=not args.no_up)
    print("\nNext:")
    for step in (f"cd {folder}", "read README.md", *up, *found.spec.next_steps):
        print(f"  {step}")
    print(f"  mrclab lab check {found.number}      as often as you like; it gives hints")
    print(f"  mrclab lab submit {found.number}     packs what you hand in")
    for program in found.spec.programs:
        if shutil.which(program) is None:
            print(f"({program} is not on the PATH; the README says what to do without it)")
    return 0


def _bring_up(found: Lab, *, wanted: bool) -> tuple[str, ...]:
    """Bring up a lab's fabric if that is possible; return the command that the student has to type."""
    topology = found.spec.topology
    if topology is None:
        return ()
    words = f"up --topology {topology}"
    by_hand = f"mrclab {words}"
    by_hand += "      (as root; the README says how to do without)" if found.spec.optional_fabric else ""
    if not wanted:
        return (by_hand,)
    if not is_root():
        return (by_hand if found.spec.optional_fabric else by_sudo(words),)
    from mrclab.running import bring_up

    print()
    try:
        failed = bring_up(topology, os.environ.get("MRCLAB_TARGET", "auto")) != 0
    except MrclabError as error:
        print(f"The fabric was not brought up: {error}")
        failed = True
    return (by_hand,) if failed else ()


def _require_modules(found: Lab) -> None:
    missing = [name for name in found.spec.modules if importlib.util.find_spec(name) is None]
    if missing:
        raise MachineError(
            f"lab {found.number} needs Python's '{missing[0]}'", "install it: pip install 'mrclab[labs]'"
        )


def _check(args: argparse.Namespace) -> int:
    found = find(args.lab)
    _require_modules(found)
    folder = student.work_folder(found, args.folder, Path.cwd())
    outcomes = list(_shown(_judged(found, folder), quiet=args.json))
    if args.json:
        print(json.dumps({"lab": found.number, "checks": [asdict(o) for o in outcomes]}, indent=1))
    else:
        print(_summary(found, outcomes))
    return 0 if passed(outcomes) else 1


def _score(args: argparse.Namespace) -> int:
    """Print the score of a folder; return 1 if a part has no result."""
    found = find(args.lab)
    require_score(found)
    _require_modules(found)
    folder = student.work_folder(found, args.folder, Path.cwd())
    parts = list(score_parts(found, folder))
    score = score_of(parts)
    if args.json:
        sums = dict(score.sums) if score else None
        print(json.dumps({"lab": found.number, "score": sums, "parts": [asdict(part) for part in parts]}))
    else:
        print(table(parts))
        last = f"Your score: {score} (lower is better)" if score else "No score, as a part has no result."
        print(f"\n{last}")
    return 0 if score else 1


def _judged(found: Lab, folder: Path) -> Iterator[Outcome]:
    return judge(folder_of(found) / "check.py", folder, found.spec.check_limit_s)


def _shown(outcomes: Iterator[Outcome], *, quiet: bool = False) -> Iterator[Outcome]:
    """Print each outcome as it comes, with its hint below it."""
    for outcome in outcomes:
        if not quiet:
            mark = "ok  " if outcome.passed else "... " if not outcome.tried else "hint"
            print(f"{mark}  {outcome.check}", flush=True)
            if outcome.tried and outcome.hint:
                lines = [textwrap.fill(line, _WIDTH - 6) for line in outcome.hint.splitlines()]
                print(textwrap.indent("\n".join(lines), " " * 6), flush=True)
        yield outcome


def _summary(found: Lab, outcomes: list[Outcome]) -> str:
    good = sum(outcome.passed for outcome in outcomes)
    if good == len(outcomes):
        return f"\nAll {good} checks pass. 'mrclab lab submit {found.number}' packs your hand-in."
    return f"\n{good} of {len(outcomes)} checks pass."


def _submit(args: argparse.Namespace) -> int:
    found = find(args.lab)
    _require_modules(found)
    folder = student.work_folder(found, args.folder, Path.cwd())
    out = Path(args.out or f"{found.student_folder}.zip")
    if out.is_dir():
        raise InputError(f"{out} is a folder: name a file")
    outcomes = list(_shown(_judged(found, folder)))
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    result = student.pack(found, folder, out, outcomes, when, version())
    print(f"\n{result['checks_passed']} of {len(outcomes)} checks pass; the hand-in says so.")
    print(f"handed in: {out}")
    return 0


def _solution(args: argparse.Namespace) -> int:
    found = find(args.lab)
    folder = Path(args.folder or f"{found.student_folder}-solution")
    student.solution(found, folder)
    print(f"the solution of lab {found.number}: {folder}/")
    return 0
