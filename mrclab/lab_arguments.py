"""The options of ``mrclab lab``."""

from __future__ import annotations

import argparse


def lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what ``mrclab lab`` takes."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    verbs.add_parser("list", help="all labs")
    start = verbs.add_parser("start", help="copy a lab's skeleton to a folder, and bring up what it needs")
    check = verbs.add_parser("check", help="check your work; what does not pass gets a hint")
    score = verbs.add_parser("score", help="going further: the score of labs that have one; lower is better")
    submit = verbs.add_parser("submit", help="check, and pack your files with the result")
    solution = verbs.add_parser("solution", help="copy the solution to a folder of its own (instructors)")
    _grade_arguments(verbs.add_parser("grade", help="check a class's hand-ins again, each without rights"))
    for verb in (start, check, score, submit, solution):
        verb.add_argument("lab", metavar="N", help="the lab's number or name")
        verb.add_argument("folder", metavar="FOLDER", nargs="?", help="default: lab-NN-name below this one")
    start.add_argument(
        "--student", metavar="NUMBER", help="draw the values of this student, so that nobody has the same"
    )
    start.add_argument("--no-up", action="store_true", help="bring no fabric up")
    for verb in (check, score):
        verb.add_argument("--json", action="store_true", help="for programs")
    submit.add_argument("--out", metavar="FILE", help="the zip file (default: lab-NN-name.zip)")


def _grade_arguments(grade: argparse.ArgumentParser) -> None:
    grade.add_argument("lab", metavar="N", help="the lab's number or name")
    grade.add_argument("folder", metavar="DIR", help="zip files or folders called after students")
    grade.add_argument("--csv", metavar="FILE", help="write a table here (default: to the terminal)")
    grade.add_argument(
        "--format", choices=("plain", "moodle"), default="plain", help="of the table (default: plain)"
    )
    grade.add_argument("--gradescope", metavar="DIR", help="write a results.json for each hand-in here")
    grade.add_argument("--answers", metavar="FILE", help="write all answers, question by question, as CSV")
    grade.add_argument("--roster", metavar="FILE", help="all names, to find those who handed nothing in")
    grade.add_argument(
        "--variants",
        action="store_true",
        help="judge each hand-in by the student's number in the roster, not by the one in the hand-in",
    )
    grade.add_argument("--due", metavar="TIME", help="mark later ones, such as 2026-11-30T18:00+01:00")
    grade.add_argument("--jobs", metavar="N", type=int, help="hand-ins at a time (default: one a CPU)")
    grade.add_argument(
        "--unconfined", action="store_true", help="grade though this machine allows no namespaces"
    )
