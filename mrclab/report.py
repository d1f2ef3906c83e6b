"""``mrclab report DIR ...``: a page for each run, and an index over them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.report.write import write_all, write_index

INDEX = "index.html"


def report(directories: Sequence[str], index: str | None) -> int:
    """Write report.html and trials.csv into each run's directory, and an index page for several runs.

    Raises InputError where a directory holds no result.
    """
    console = Console(soft_wrap=True)
    runs = [Path(directory) for directory in directories]
    if len(runs) == 1 and index is None:
        for path in write_all(runs[0]):
            console.print(str(path))
    else:
        console.print(str(write_index(runs, Path(index or INDEX))))
    return 0
