"""The options of ``mrclab exercise``."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from mrclab.linux.errors import InputError
from mrclab.p4src.targets import TARGETS


def exercise_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab exercise`` takes, and what carries it out."""
    parser.add_argument("directory", metavar="DIR", help="as in p4lang/tutorials")
    parser.add_argument(
        "--all", action="store_true", help="DIR is a whole course: run all, as they are and solved; a table"
    )
    parser.add_argument("--topology", metavar="FILE", help="if DIR has several (default: the Makefile's)")
    parser.add_argument("--build", metavar="DIR", help="where p4c's output is (default: build in DIR)")
    parser.add_argument("--target", choices=TARGETS, default=os.environ.get("MRCLAB_TARGET", "auto"))
    parser.set_defaults(do=_exercise)


def _exercise(args: argparse.Namespace) -> int:
    if args.all:
        from mrclab.exercise_all import exercise_all

        if args.topology is not None or args.build is not None:
            raise InputError(
                "--all runs every topology and compiles by itself: leave --topology and --build out"
            )
        return exercise_all(Path(args.directory), args.target)
    from mrclab.exercise import exercise

    topology, build = (Path(p) if p is not None else None for p in (args.topology, args.build))
    return exercise(Path(args.directory), topology, build, args.target)
