"""Templates to HTML: all data of a run are escaped, except our own pictures."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("mrclab.experiments.report.page"),
        autoescape=lambda name: name is None or name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )


def render(template: str, context: Mapping[str, Any]) -> str:
    """Fill in a template. Raise jinja2.UndefinedError if the context lacks a name."""
    return _environment().get_template(template).render(context)


def drawn(svg: str | None) -> Markup | None:
    """Mark a picture of ours as not to be escaped."""
    return None if svg is None else Markup(svg)
