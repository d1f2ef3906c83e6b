"""``mrclab lab grade``: a class's hand-ins, checked again and put into a table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from mrclab.labs.catalogue import find
from mrclab.labs.grading import handins, tables
from mrclab.labs.grading.grade import Graded, grade, require_sandbox
from mrclab.labs.grading.rubric import rubric_of
from mrclab.labs.measuring import CACHE
from mrclab.linux.errors import InputError

_ALIKE = 0.8


def grade_command(args: argparse.Namespace) -> int:
    """Grade the hand-ins of a folder; return 0. Raise InputError, and MachineError without a sandbox."""
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
    _summary(graded)
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


def _summary(graded: Sequence[Graded]) -> None:
    missing = sum(one.note == "missing" for one in graded)
    late = sum(one.late for one in graded)
    alike = sum(one.similarity >= _ALIKE or bool(one.same_files) for one in graded)
    print(
        f"{len(graded) - missing} hand-ins, {missing} missing, {late} late, {alike} much like another one",
        file=sys.stderr,
    )
