"""The options of ``mrclab lab``."""

from __future__ import annotations

import argparse


def lab_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the actions of ``mrclab lab`` and their options."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    verbs.add_parser("list", help="List all labs.")
    start = verbs.add_parser(
        "start", help="Copy a lab's skeleton to a folder, and bring up the fabric that it needs."
    )
    check = verbs.add_parser("check", help="Check your work; each check that does not pass gives a hint.")
    score = verbs.add_parser(
        "score", help="Print the score of a lab that has one ('going further'); lower is better."
    )
    submit = verbs.add_parser("submit", help="Check, and pack your files with the result.")
    solution = verbs.add_parser(
        "solution", help="Copy the solution to a folder of its own (for instructors)."
    )
    _grade_arguments(verbs.add_parser("grade", help="Check a class's hand-ins again, each without rights."))
    for verb in (start, check, score, submit, solution):
        verb.add_argument("lab", metavar="N", help="The lab's number or name.")
        verb.add_argument(
            "folder",
            metavar="FOLDER",
            nargs="?",
            help="The folder of your work (default: lab-NN-name below this one).",
        )
    start.add_argument(
        "--student",
        metavar="NUMBER",
        help="Draw the values of this student, so that no two students have the same.",
    )
    start.add_argument("--no-up", action="store_true", help="Bring no fabric up.")
    for verb in (check, score):
        verb.add_argument("--json", action="store_true", help="Print JSON, for programs.")
    submit.add_argument("--out", metavar="FILE", help="The zip file (default: lab-NN-name.zip).")


def _grade_arguments(grade: argparse.ArgumentParser) -> None:
    grade.add_argument("lab", metavar="N", help="The lab's number or name.")
    grade.add_argument(
        "folder", metavar="DIR", help="A directory of zip files or folders, named after students."
    )
    grade.add_argument("--csv", metavar="FILE", help="Write the table to FILE (default: to the terminal).")
    grade.add_argument(
        "--format",
        choices=("plain", "moodle"),
        default="plain",
        help="The format of the table (default: plain).",
    )
    grade.add_argument("--gradescope", metavar="DIR", help="Write a results.json for each hand-in to DIR.")
    grade.add_argument(
        "--answers", metavar="FILE", help="Write all answers to FILE, question by question, as CSV."
    )
    grade.add_argument(
        "--roster", metavar="FILE", help="A list of all names, to find those who handed nothing in."
    )
    grade.add_argument(
        "--variants",
        action="store_true",
        help="Judge each hand-in by the student's number in the roster, not by the one in the hand-in.",
    )
    grade.add_argument(
        "--due",
        metavar="TIME",
        help="Mark hand-ins that came later than this, such as 2026-11-30T18:00+01:00.",
    )
    grade.add_argument(
        "--jobs", metavar="N", type=int, help="Check N hand-ins at a time (default: one a CPU)."
    )
    grade.add_argument(
        "--unconfined", action="store_true", help="Grade even if this machine allows no namespaces."
    )
