"""The list of figures that have a judge, found without importing any of them."""

from __future__ import annotations

from importlib.resources import files

from mrclab.linux.errors import InputError

_NOT_FIGURES = ("__init__.py", "listing.py")


def require_figure(figure: str) -> None:
    """Raise InputError if there is no such module."""
    known = sorted(
        f.name.removesuffix(".py")
        for f in files("mrclab.experiments.figures").iterdir()
        if f.name.endswith(".py") and f.name not in _NOT_FIGURES
    )
    if figure not in known:
        raise InputError(f"figure: there is no '{figure}' in experiments/figures ({', '.join(known)})")
