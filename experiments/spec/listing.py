"""The judges of figures by name: a shipped one, ``module:judge``, or a package's entry point.

A package announces its judges as entry points of the group ``mrclab.figures``. ``module:judge`` is looked for
where Python looks, and in the current directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from mrclab.hosts.schemes.registry import find_object
from mrclab.linux.errors import InputError

GROUP = "mrclab.figures"
_NOT_FIGURES = ("__init__.py", "listing.py")


def require_figure(figure: str) -> None:
    """Raise InputError if there is no such judge. Shipped ones are not imported."""
    known = sorted(
        f.name.removesuffix(".py")
        for f in files("mrclab.experiments.figures").iterdir()
        if f.name.endswith(".py") and f.name not in _NOT_FIGURES
    )
    if figure in known or own_judge(figure) is not None:
        return
    raise InputError(
        f"figure: there is no '{figure}' in experiments/figures ({', '.join(known)}), nor is it module:judge"
    )


def own_judge(figure: str) -> Callable[[Mapping[str, Any]], Any] | None:
    """Return the judge outside of the tree that ``figure`` names, None if the name has no such form.

    Raise InputError if its module cannot be imported, or has no such function.
    """
    try:
        found = find_object(figure, GROUP)
    except ValueError as error:
        raise InputError(f"figure: {error}") from None
    if found is not None and not callable(found):
        raise InputError(f"figure: {figure} is no function: a judge takes a result and returns a Verdict")
    return found  # type: ignore[no-any-return]
