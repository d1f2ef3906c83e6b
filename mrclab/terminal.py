"""The terminal that commands print to."""

from __future__ import annotations

from typing import IO

from rich.console import Console


def terminal(file: IO[str] | None = None, *, width: int | None = None, soft_wrap: bool = False) -> Console:
    """Return a console on standard output, or on a file, that shows text as it is.

    Names and descriptions that users write may hold anything: rich's own Console takes text in square
    brackets for markup, and ``:cat:`` for a picture. Styles are given by `rich.text.Text`.
    """
    return Console(file=file, width=width, soft_wrap=soft_wrap, markup=False, emoji=False)
