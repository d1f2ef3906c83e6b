"""The parser of the command line, and the options that several commands share.

It is argparse's parser, but it reports a mistake in one line and proposes the most similar valid word.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.p4src.targets import TARGETS

SMALL = "tiny, lab, two-racks, wide, thin"
"""The shipped topologies that fit on one machine. The simulator also runs larger topologies."""
_WRONG_CHOICE = re.compile(r"invalid choice: '(.+?)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # Treat "-5s" as the value of an option, so that the option's parser raises a clear error.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> None:  # type: ignore[override]
        """Print the mistake and exit."""
        if wrong := _WRONG_CHOICE.search(message):
            choices = [choice.strip(" '") for choice in wrong[2].split(",")]
            if near := difflib.get_close_matches(wrong[1], choices, n=1):
                message = f"there is no '{wrong[1]}': did you mean {near[0]}?"
        self.exit(InputError.exit_code, f"mrclab: {message} (see '{self.prog} --help')\n")


def add_target(parser: argparse.ArgumentParser, default: str | None, *, simulator: bool = False) -> None:
    """Add ``--target``. Its default is the environment variable MRCLAB_TARGET, if it is set."""
    words = "Run on these switches"
    if simulator:
        words += "; sim is the simulator, which needs no root and runs on any system"
    parser.add_argument(
        "--target",
        choices=(*TARGETS, "sim") if simulator else TARGETS,
        default=os.environ.get("MRCLAB_TARGET") or default,
        help=f"{words} ({default})." if default else f"{words}.",
    )


def add_topology(parser: argparse.ArgumentParser, default: str = "", more: str = "") -> None:
    """Add ``--topology``; `more` is a text for the help that names further topologies."""
    parser.add_argument(
        "--topology",
        metavar="T",
        default=default or None,
        help=f"The fabric: a shipped topology ({SMALL}{more}) or a YAML file.",
    )


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add ``--program``."""
    parser.add_argument(
        "--program",
        metavar="FILE",
        help="Load your own switch program: P4, or BMv2 JSON with its P4Info beside it.",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add ``--force``."""
    parser.add_argument("--force", action="store_true", help="Do it even if the fabric is another user's.")


def add_json(parser: argparse.ArgumentParser, words: str = "Print JSON, for programs.") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=words)


def add_set(parser: argparse.ArgumentParser) -> None:
    """Add ``--set``."""
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Override a key of the scenario; may be given many times.",
    )
