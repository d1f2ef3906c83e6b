"""All files that show a result: pictures, page and table of trials, made from result.json alone."""

from __future__ import annotations

from pathlib import Path


def write_all(out: Path) -> None:
    """Draw the pictures, and write report.html and trials.csv into the directory of a result.json.

    Raises InputError where the directory holds no result.
    """
    raise NotImplementedError
