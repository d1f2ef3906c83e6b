"""`mrclab exercise --all`: every exercise of a P4 course, as it is and solved, in a table of outcomes."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.table import Table

from mrclab.exercises.course import (
    STATES,
    Case,
    NotCompiledError,
    cases_of,
    compile_all,
    staged,
)
from mrclab.exercises.network import Plan, running
from mrclab.exercises.pings import ping_all
from mrclab.exercises.topology import read_topology
from mrclab.linux.errors import MrclabError
from mrclab.p4src.compile import has_compiler
from mrclab.switches.target import select_target
from mrclab.terminal import terminal
from mrclab.testbed.doctor import require_machine


def exercise_all(course: Path, target: str) -> int:
    """Bring up each exercise of a course, as it is and solved; print a table of outcomes.

    Return 0 if every solution came up, 1 if one did not. Raise InputError, MachineError.
    """
    cases = cases_of(course)
    chosen = select_target(target).name
    require_machine()
    compiler = has_compiler()
    table = Table("exercise", "topology", *STATES, box=None, pad_edge=False)
    good = True
    for case in cases:
        outcomes = []
        for solved in (False, True):
            print(f"{case.name}, {case.topology}, {STATES[solved]}", file=sys.stderr, flush=True)
            came_up, words = outcome(case, solved, chosen, compiler)
            outcomes.append(words)
            good &= came_up or not solved
        table.add_row(case.name, case.topology.removesuffix("/topology.json"), *outcomes)
    terminal().print(table)
    return 0 if good else 1


def outcome(case: Case, solved: bool, target: str, compiler: bool) -> tuple[bool, str]:
    """Return whether a state of an exercise came up, and its outcome in words."""
    with tempfile.TemporaryDirectory(prefix="mrclab-exercise-") as scratch:
        try:
            here = staged(case, solved, Path(scratch) / case.name)
            compile_all(here, here / "build", compiler)
            plan = Plan.read(here, read_topology(here / case.topology), target)
            logs = Path(scratch) / "logs"
            logs.mkdir()
            with running(plan, logs) as up:
                answered = ping_all(up)
        except NotCompiledError as error:
            return False, str(error)
        except MrclabError as error:
            reason = " ".join(str(error).split())
            return False, reason.replace(f"{Path(scratch).resolve()}/{case.name}/", "").replace(scratch, "")
    words = f"{sum(answered.values())} of {len(answered)} pings answered"
    waiting = [switch.name for switch in plan.topology.switches if switch.runtime is None]
    return True, words + (f"; {', '.join(waiting)} without a controller" if waiting else "")
