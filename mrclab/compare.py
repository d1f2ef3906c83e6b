"""``mrclab compare A B ...``: runs side by side, each with the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from experiments.report.compare import render_compare
from experiments.report.result import load_result


def compare(a: str, others: Sequence[str]) -> int:
    """Print the comparison of result directories. Raises InputError where nothing is shared."""
    console = Console()
    first = load_result(a)
    for other in others:
        console.print(render_compare(first, load_result(other)))
    return 0
