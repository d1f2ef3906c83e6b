"""The options of ``mrclab lab``."""

from __future__ import annotations

import argparse


def lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab lab`` takes."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    verbs.add_parser("list", help="all labs")
    start = verbs.add_parser("start", help="copy a lab's skeleton to a folder, and bring up what it needs")
    check = verbs.add_parser("check", help="check your work; what does not pass gets a hint")
    submit = verbs.add_parser("submit", help="check, and pack your files with the result")
    solution = verbs.add_parser("solution", help="copy the solution to a folder of its own")
    for verb in (start, check, submit, solution):
        verb.add_argument("lab", metavar="N", help="the lab's number or name")
        verb.add_argument("folder", metavar="FOLDER", nargs="?", help="default: lab-NN-name below this one")
    start.add_argument("--no-up", action="store_true", help="bring no fabric up")
    check.add_argument("--json", action="store_true", help="for programs")
    submit.add_argument("--out", metavar="FILE", help="the zip file (default: lab-NN-name.zip)")
