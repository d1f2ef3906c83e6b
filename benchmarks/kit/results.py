"""Print results of benchmarks: a table of medians with n, minimum and maximum, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence


def machine() -> str:
    """Describe the machine on which a benchmark runs."""
    return f"{os.cpu_count()} CPUs, Linux {platform.release()}, Python {platform.python_version()}, " + (
        f"load {os.getloadavg()[0]:.1f} at the start"
    )


def head() -> None:
    """Print the header line of a table."""
    print(f"{'':42} {'n':>6} {'median':>12} {'least':>12} {'most':>12}")


def row(what: str, n: int, values: Sequence[float], unit: str, note: str = "") -> None:
    """Print a line of a table: median, minimum and maximum of n values."""
    figures = " ".join(f"{v:12.2f}" for v in (statistics.median(values), min(values), max(values)))
    print(f"{what:42} {n:6} {figures} {unit:9} {note}", flush=True)


def bound(what: str, value: float, least: float | None = None, most: float | None = None) -> bool:
    """Print a value and its bound. Return True if the value keeps the bound."""
    kept = (least is None or value >= least) and (most is None or value <= most)
    wanted = f"at least {least:g}" if least is not None else f"at most {most:g}"
    print(f"{what:42} {value:12.2f}  wanted: {wanted}: {'kept' if kept else 'MISSED'}", flush=True)
    return kept
