"""Make HTML from templates. All data are escaped, except pictures that mrclab has drawn."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
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
    """Mark a picture that mrclab has drawn as safe HTML, which is not escaped."""
    return None if svg is None else Markup(svg)


_ID = re.compile(r'\bid="([^"]+)"')
_REFERENCE = re.compile(r'(url\(#|href="#)([^")]+)')
_SVG = re.compile(r"<svg\b.*</svg>", re.DOTALL)
_SIZE = re.compile(r'(<svg\b[^>]*?) width="[^"]+"')
_HEIGHT = re.compile(r'(<svg\b[^>]*?) height="[^"]+"')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)


def inline_svg(text: str, name: str, says: str) -> str:
    """Return an SVG file's text as an element of an HTML page.

    Every id gets the prefix ``name``, so that the ids of two pictures on a page differ. Width and height are
    left to the page's style. ``says`` is for screen readers. Raise ValueError if the text has no ``<svg>``.
    """
    found = _SVG.search(text)
    if found is None:
        raise ValueError(f"{name} holds no <svg> element")
    svg = _METADATA.sub("", found[0])
    svg = _ID.sub(lambda m: f'id="{name}-{m[1]}"', svg)
    svg = _REFERENCE.sub(lambda m: f"{m[1]}{name}-{m[2]}", svg)
    svg = _HEIGHT.sub(r"\1", _SIZE.sub(r"\1", svg, count=1), count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(says)}"', 1)


def picture(directory: Path, name: str, says: str) -> str | None:
    """Return the picture ``name``.svg of a run's directory, or None if there is no such file."""
    try:
        text = (directory / f"{name}.svg").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return inline_svg(text, name, says)
