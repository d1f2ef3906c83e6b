"""``mrclab report DIR ...``: write the page of each run, and an index page for several runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mrclab.experiments.report.build import rebuild
from mrclab.experiments.report.write import write_all, write_index
from mrclab.experiments.result.file import refused_if_damaged
from mrclab.linux.errors import InputError
from mrclab.terminal import terminal

INDEX = "index.html"


def report(args: argparse.Namespace) -> int:
    """Write report.html and trials.csv into each run's directory, and an index page for several runs.

    If one of several directories has no result, skip it with a line on stderr. Raise InputError if no
    directory has a result.
    """
    console = terminal(soft_wrap=True)
    runs = [Path(directory) for directory in args.directories]
    if len(runs) == 1 and args.index is None:
        for path in _written(runs[0]):
            console.print(str(path))
        return 0
    found, left_out = [], []
    for run in runs:
        try:
            _written(run)
        except InputError as error:
            left_out.append(error)
        else:
            found.append(run)
    if not found:
        raise InputError(f"none of {len(runs)} directories has a result: {left_out[0]}")
    for why in left_out:
        print(f"mrclab: left out: {why}", file=sys.stderr)
    console.print(str(write_index(found, Path(args.index or INDEX))))
    return 0


def _written(run: Path) -> tuple[Path, Path]:
    rebuild(run)
    with refused_if_damaged(run):
        return write_all(run)
