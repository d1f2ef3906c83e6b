"""`mrclab exercise`: an exercise of a P4 course on our switches."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from mrclab.exercises.course import BUILD, compile_all
from mrclab.exercises.network import Exercise, Plan, running
from mrclab.exercises.topology import find_topology, read_topology
from mrclab.p4src.compile import has_compiler
from mrclab.switches.target import select_target
from mrclab.testbed.doctor import require_machine


def exercise(directory: Path, topology: Path | None, build: Path | None, target: str) -> int:
    """Bring an exercise up, give Mininet's command line, and take it down at its end.

    Programs that are not compiled yet are compiled first, if p4c is on PATH; nothing is written into
    ``directory``.
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
