"""``mrclab compare A B ...``: runs side by side, each with the first."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from experiments.measure.effects import render_effects
from experiments.report.compare import load_result, render_comparison
from experiments.report.comparison_result import SCHEMA as COMPARISON
from experiments.report.result import SCHEMA as RECOVERY
from linux.errors import InputError


def compare(a: str, others: Sequence[str]) -> int:
    """Print the comparison of result directories. Raise InputError if one is no result or of another form."""
    console = Console()
    first = load_result(a, (RECOVERY, COMPARISON))
    for other in others:
        second = load_result(other, (RECOVERY, COMPARISON))
        if first["schema"] != second["schema"]:
            raise InputError(f"'{a}' and '{other}' are results of different forms")
        render = render_effects if first["schema"] == COMPARISON else render_comparison
        console.print(render(first, second))
    return 0
