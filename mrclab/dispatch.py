"""The first step of commands whose modules are slow to import.

This step checks a scenario's name or the system before it imports the module, so that errors appear quickly.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.linux.system import require_linux


def run(args: argparse.Namespace) -> int:
    """Carry out ``mrclab run``. If the scenario does not exist, raise InputError before the slow import."""
    from mrclab.experiments.spec.shipped import SCENARIOS

    if args.scenario not in (None, "figures"):
        SCENARIOS.text(args.scenario)
    from mrclab.run import run

    return run(args)


def soak(args: argparse.Namespace) -> int:
    """Carry out ``mrclab soak``. If the scenario does not exist, raise InputError before the slow import."""
    from mrclab.experiments.spec.shipped import SCENARIOS

    SCENARIOS.text(args.soak)
    from mrclab.run import soak

    return soak(args)


def live(args: argparse.Namespace) -> int:
    """Carry out ``mrclab live``, with the simulator or with a fabric on this machine."""
    if args.target == "sim" and args.run is None:
        from mrclab.play.command import live_simulated

        return live_simulated(args)
    require_linux("mrclab live")
    from mrclab.live.command import live

    return live(args)


def execute(args: argparse.Namespace) -> int:
    """Carry out ``mrclab exec``, on one host or on all hosts, with or without a recording."""
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.all:
        from mrclab.exec import run_everywhere

        # With --all there is no host: argparse has stored the program's name in args.host.
        given = [word for word in (args.host, *words) if word is not None]
        return run_everywhere(given, args.user, args.record)
    if args.record is not None:
        from mrclab.exec import record_program

        return record_program(args.host, words, args.user, args.record)
    from mrclab.exec import run_program

    return run_program(args.host, words, args.user)


def exercise(args: argparse.Namespace) -> int:
    """Carry out ``mrclab exercise``, for one exercise or for a course."""
    if args.all:
        from mrclab.exercise import exercise_all

        if args.topology is not None or args.build is not None:
            raise InputError(
                "--all runs every topology and compiles by itself: leave --topology and --build out"
            )
        return exercise_all(Path(args.directory), args.target)
    from mrclab.exercise import exercise

    topology, build = (Path(path) if path is not None else None for path in (args.topology, args.build))
    return exercise(Path(args.directory), topology, build, args.target)
