"""``mrclab compare A B``: two runs side by side."""

from __future__ import annotations

from rich.console import Console

from experiments.compare import load_result, render_comparison


def compare(a: str, b: str) -> int:
    """Prints the comparison of two result directories. Raises InputError where one is none."""
    first, second = load_result(a), load_result(b)
    Console().print(render_comparison(first, second))
    return 0
