"""``mrclab lab``: start a lab, check it, pack it for submission, and grade the submissions of a class."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table

from mrclab.labs import student
from mrclab.labs.catalogue import Lab, Outcome, all_labs, find, folder_of, passed
from mrclab.labs.grading import handins, tables
from mrclab.labs.grading.grade import Graded, grade, require_sandbox
from mrclab.labs.grading.tables import rubric_of
from mrclab.labs.judge import judge, require_score, score_of, score_parts, score_table
from mrclab.labs.measuring import CACHE
from mrclab.labs.student import MARKER, PAGE, USUAL, Variant, student_number
from mrclab.linux.errors import InputError, MachineError, MrclabError
from mrclab.linux.system import is_root
from mrclab.terminal import terminal
from mrclab.testbed.names import by_sudo
from mrclab.version import version

_ALIKE = 0.8


def grade_command(args: argparse.Namespace) -> int:
    """Grade a folder of submissions. Raise InputError on bad input, MachineError if there is no sandbox."""
    lab = find(args.lab)
    due = _time(args.due)
    jobs = args.jobs if args.jobs is not None else os.cpu_count() or 1
    if jobs < 1:
        raise InputError("--jobs must be 1 or more")
    found = handins.find(Path(args.folder), lab)
    roster = handins.read_roster(Path(args.roster)) if args.roster else []
    if args.variants:
        if not args.roster:
            raise InputError("--variants needs --roster FILE, which has the students' numbers")
        found = handins.with_students(roster, found)
    if not args.unconfined:
        require_sandbox()
    lock, done = threading.Lock(), []

    def report(one: Graded) -> None:
        with lock:
            done.append(one)
            print(f"{len(done)} of {len(found)}: {_line(one)}", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="mrclab-runs-") as runs:
        before = os.environ.get(CACHE)
        os.environ[CACHE] = before or runs
        try:
            graded = grade(lab, found, due, jobs, report)
        finally:
            if before is None:
                del os.environ[CACHE]
    graded += [Graded(person, note="missing") for person in handins.missing(roster, found)]
    table = tables.moodle(graded) if args.format == "moodle" else tables.plain(lab, graded)
    if args.csv:
        _write(Path(args.csv), table)
    else:
        print(table, end="")
    if args.answers:
        _write(Path(args.answers), tables.answers(graded, rubric_of(lab)))
    if args.gradescope:
        _write_gradescope(Path(args.gradescope), graded)
    _class_summary(graded)
    return 0


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"--due: '{text}' is no time such as 2026-11-30T18:00+01:00") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _line(one: Graded) -> str:
    name = "".join(c if c.isprintable() else " " for c in one.person.name)
    late = ", late" if one.late else ""
    return (
        f"{name}: {one.passed} of {len(one.outcomes)} checks pass{late}"
        if one.outcomes
        else f"{name}: {one.note}"
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def _write_gradescope(folder: Path, graded: Sequence[Graded]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror or error}") from None
    for number, one in enumerate(graded, 1):
        name = one.person.number or f"{number}"
        _write(folder / f"{name}.json", json.dumps(tables.gradescope(one), indent=1) + "\n")


def _class_summary(graded: Sequence[Graded]) -> None:
    missing = sum(one.note == "missing" for one in graded)
    late = sum(one.late for one in graded)
    alike = sum(one.similarity >= _ALIKE or bool(one.same_files) for one in graded)
    print(
        f"{len(graded) - missing} hand-ins, {missing} missing, {late} late, {alike} much like another one",
        file=sys.stderr,
    )


_WIDTH = 78


def lab(args: argparse.Namespace) -> int:
    """Run ``mrclab lab WHAT``. Return the exit code, which is 1 if a check did not pass."""
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
    """Bring up a lab's fabric if ``wanted``. If the fabric stays down, return the command to bring it up."""
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
        failed = bring_up(topology, os.environ.get("MRCLAB_TARGET") or "auto") != 0
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
    """Print the score of a folder; return 1 if a part of the score has no result."""
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
        print(score_table(parts))
        last = f"Your score: {score} (lower is better)" if score else "No score, as a part has no result."
        print(f"\n{last}")
    return 0 if score else 1


def _judged(found: Lab, folder: Path) -> Iterator[Outcome]:
    return judge(folder_of(found) / "check.py", folder, found.spec.check_limit_s)


def _shown(outcomes: Iterator[Outcome], *, quiet: bool = False) -> Iterator[Outcome]:
    """Print each outcome as soon as it is known, with its hint on the next lines, and yield it."""
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
    when = datetime.now(UTC).isoformat(timespec="seconds")
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
