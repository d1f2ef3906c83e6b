"""``mrclab compare A B ...``: compare two runs and their differences, or show several runs in columns."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from mrclab.experiments.report.compare import document, render_columns, render_compare
from mrclab.experiments.result.file import load_result, refused_if_damaged
from mrclab.linux.errors import InputError
from mrclab.terminal import terminal

MOST = len(ascii_uppercase)
_LIST = "ci95_ratio"


def compare(args: argparse.Namespace) -> int:
    """Print the comparison of result directories as tables, JSON or CSV.

    Raise InputError if there are too many directories, or if two of the runs have no metric in common.
    """
    directories: list[str] = [args.a, *args.b]
    if len(directories) > MOST:
        raise InputError(f"at most {MOST} runs can be compared at a time, not {len(directories)}")
    runs = dict(zip(ascii_uppercase, map(load_result, directories), strict=False))
    if args.json or args.csv:
        found = document(runs)
        for letter, directory in zip(runs, directories, strict=True):
            found["runs"][letter]["directory"] = directory
        if args.json:
            print(json.dumps(found, indent=1))
        else:
            _csv(found["rows"], found["runs"])
        return 0
    console = terminal()
    first, *others = runs
    if len(others) > 1:
        with refused_if_damaged(Path(directories[0])):
            console.print(render_columns(runs))
        return 0
    for letter, directory in zip(others, directories[1:], strict=True):
        with refused_if_damaged(Path(directory)):
            console.print(render_compare(runs[first], runs[letter], letter))
    return 0


def _csv(rows: Sequence[dict[str, Any]], runs: dict[str, dict[str, Any]]) -> None:
    """Print each row of the comparison as a CSV line, with both directories and the ratio's interval."""
    names = [name for name in rows[0] if name != _LIST]
    columns = ["directory_a", "directory_b", *names, "ratio_low", "ratio_high"]
    writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        low, high = row[_LIST] or (None, None)
        writer.writerow(
            {name: row[name] for name in names}
            | {
                "directory_a": runs[str(row["a"])]["directory"],
                "directory_b": runs[str(row["b"])]["directory"],
                "ratio_low": low,
                "ratio_high": high,
            }
        )
