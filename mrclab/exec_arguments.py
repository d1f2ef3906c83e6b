"""The options of ``mrclab exec``."""

from __future__ import annotations

import argparse


def exec_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab exec`` takes, and what carries it out."""
    parser.add_argument("host", metavar="HOST", help="such as h0")
    parser.add_argument("--user", metavar="U", help="run it as this user (name or number)")
    parser.add_argument("program", metavar="-- PROGRAM", nargs=argparse.REMAINDER, help="with its arguments")
    parser.set_defaults(do=_exec)


def _exec(args: argparse.Namespace) -> int:
    from mrclab.exec import run_program

    return run_program(args)
