"""The parser of the command line: argparse, but a mistake is one line with a guess at the right word."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import Any

from mrclab.linux.errors import InputError

_WRONG_CHOICE = re.compile(r"invalid choice: '(.+?)' \(choose from (.*)\)")


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A value such as "-5s" is not one of our options: its reader refuses it and names the mend.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> None:  # type: ignore[override]
        """Print the mistake and exit."""
        if wrong := _WRONG_CHOICE.search(message):
            choices = [choice.strip(" '") for choice in wrong[2].split(",")]
            if near := difflib.get_close_matches(wrong[1], choices, n=1):
                message = f"there is no '{wrong[1]}': did you mean {near[0]}?"
        self.exit(InputError.exit_code, f"mrclab: {message} (see '{self.prog} --help')\n")
