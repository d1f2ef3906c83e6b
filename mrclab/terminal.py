"""Output for people: the console that commands print to, and times as local time of day."""

from __future__ import annotations

import time
from datetime import datetime
from typing import IO

from rich.console import Console


def terminal(file: IO[str] | None = None, *, width: int | None = None, soft_wrap: bool = False) -> Console:
    """Return a console on standard output, or on a file, that prints text unchanged.

    By default rich treats square brackets as markup and ``:cat:`` as an emoji. But users may write both, for
    instance in the description of a scenario. For coloured or bold text, pass `rich.text.Text`.
    """
    return Console(file=file, width=width, soft_wrap=soft_wrap, markup=False, emoji=False)


def offset_ns() -> int:
    """Return the wall clock's time minus CLOCK_MONOTONIC, in nanoseconds."""
    before = time.monotonic_ns()
    wall = time.time_ns()
    return wall - (before + time.monotonic_ns()) // 2


def time_of_day(monotonic_ns: int, ahead_ns: int) -> str:
    """Return a monotonic time as local time of day. ``ahead_ns`` is realtime minus monotonic time."""
    wall_ns = monotonic_ns + ahead_ns
    return f"{datetime.fromtimestamp(wall_ns // 10**9):%H:%M:%S}.{wall_ns % 10**9 // 1000:06d}"


def moment(before_ns: int, after_ns: int, ahead_ns: int) -> str:
    """Return the middle of an interval as local time of day, with the largest possible error."""
    half_us = (after_ns - before_ns) / 2000
    error = f"{half_us:.1f}" if half_us < 10 else f"{half_us:,.0f}"
    return f"{time_of_day((before_ns + after_ns) // 2, ahead_ns)} +- {error} us"
