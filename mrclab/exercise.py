"""``mrclab exercise``: run one exercise of a P4 course on mrclab's switches, or run all and print a table."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from rich.table import Table

from mrclab.exercises.course import BUILD, STATES, Case, NotCompiledError, cases_of, compile_all, staged
from mrclab.exercises.network import Exercise, Plan, ping_all, running
from mrclab.exercises.topology import find_topology, read_topology
from mrclab.linux.errors import MrclabError
from mrclab.p4src.compile import has_compiler
from mrclab.switches.target import select_target
from mrclab.terminal import terminal
from mrclab.testbed.doctor import require_machine


def exercise(directory: Path, topology: Path | None, build: Path | None, target: str) -> int:
    """Bring an exercise up, open Mininet's command line, and take the exercise down at the end.

    If programs are not compiled yet and p4c is on PATH, compile them first. Write no file into ``directory``.
    """
    chosen = select_target(target).name
    wanted = read_topology(topology or find_topology(directory))
    with tempfile.TemporaryDirectory(prefix="mrclab-exercise-") as scratch:
        if build is None and not (directory / BUILD).is_dir() and has_compiler():
            build = Path(scratch) / BUILD
            compile_all(directory.resolve(), build, compiler=True)
        plan = Plan.read(directory, wanted, chosen, build)
        require_machine()
        logs = Path(scratch) / "logs"
        logs.mkdir()
        return _prompt(plan, logs)


def _prompt(plan: Plan, logs: Path) -> int:
    with running(plan, logs) as up:
        _tell(up)
        from mrclab.exercises.view import ExerciseCLI, ExerciseMininet

        net = ExerciseMininet(up)
        try:
            ExerciseCLI(net)
        finally:
            net.stop()
    return 0


def _tell(up: Exercise) -> None:
    for warning in up.warnings:
        print(f"mrclab: {warning}", file=sys.stderr)
    for switch in up.plan.topology.switches:
        held = f"runs {switch.runtime}" if switch.runtime is not None else "waits for a controller"
        print(f"{switch.name}  P4Runtime {up.addresses[switch.name]} device {switch.device_id}, {held}")
    print(f"in namespace {up.names.fabric}; hosts: {', '.join(h.name for h in up.plan.topology.hosts)}")
    print(f"a controller: ip netns exec {up.names.fabric} ./mycontroller.py; logs: {up.log_dir}", flush=True)


def exercise_all(course: Path, target: str) -> int:
    """Bring up each exercise of a course twice: unsolved, and with its solution. Print a table.

    Return 0 if every solution came up, otherwise 1. Raise InputError or MachineError as `exercise` does.
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
    """Run an exercise, unsolved or with its solution. Return (True if it has started, result as text)."""
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
