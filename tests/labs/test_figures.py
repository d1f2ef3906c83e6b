"""The figures of the labs are up to date: their script draws the same figures again."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from tests.support.paths import ROOT

spec = importlib.util.spec_from_file_location("lab_figures", ROOT / "tools" / "lab_figures.py")
assert spec is not None
assert spec.loader is not None
lab_figures = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab_figures)
FIGURES: dict[str, Callable[[], str]] = lab_figures.FIGURES


@pytest.mark.parametrize("path", [p for p in FIGURES if "recovery" not in p])
def test_a_figure_is_what_the_fabric_and_its_switches_give(path: str) -> None:
    assert (ROOT / path).read_text(encoding="utf-8") == FIGURES[path]()


@pytest.mark.slow
def test_the_recovery_is_that_of_a_run() -> None:
    (path,) = (p for p in FIGURES if "recovery" in p)
    assert (ROOT / path).read_text(encoding="utf-8") == FIGURES[path]()


@pytest.mark.parametrize("path", FIGURES)
def test_a_figure_has_words_for_screen_readers_and_is_in_a_page(path: str) -> None:
    root = ET.fromstring((ROOT / path).read_text(encoding="utf-8"))
    assert root.get("role") == "img"
    assert len(root.get("aria-label", "")) > 20
    page = (ROOT / path).parent / "README.md"
    assert f"({path.rpartition('/')[2]})" in page.read_text(encoding="utf-8")
