"""The options of ``mrclab exec``."""

from __future__ import annotations

import argparse
from pathlib import Path


def exec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab exec`` takes, and what carries it out."""
    parser.add_argument("--all", action="store_true", help="on every host, with a rank in its environment")
    parser.add_argument(
        "--record",
        metavar="FILE",
        type=Path,
        help="write the requests to the NIC to FILE, which `kind: recorded` replays (docs/programs.md)",
    )
    parser.add_argument("--user", metavar="U", help="run it as this user (name or number)")
    parser.add_argument("host", metavar="HOST", nargs="?", help="such as h0; none with --all")
    parser.add_argument("program", metavar="-- PROGRAM", nargs=argparse.REMAINDER, help="with its arguments")
    parser.set_defaults(do=_exec)


def _exec(args: argparse.Namespace) -> int:
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if args.all:
        from mrclab.exec_all import run_everywhere

        # argparse takes the first word after -- for the host.
        return run_everywhere(
            [word for word in (args.host, *words) if word is not None], args.user, args.record
        )
    if args.record is not None:
        from mrclab.exec_record import record_program

        return record_program(args.host, words, args.user, args.record)
    from mrclab.exec import run_program

    return run_program(args.host, words, args.user)
