"""The slides of the labs: they are complete, and everything is in one file."""

from __future__ import annotations

import importlib.util
import re

import pytest

from mrclab.labs.catalogue import all_labs, folder_of
from tests.support.paths import ROOT

pytest.importorskip("markdown", reason="the extra docs")
spec = importlib.util.spec_from_file_location("lab_slides", ROOT / "tools" / "slides.py")
assert spec is not None
assert spec.loader is not None
slides = importlib.util.module_from_spec(spec)
spec.loader.exec_module(slides)
LABS = {lab.folder: lab for lab in all_labs() if (folder_of(lab) / "slides.md").is_file()}


def test_there_are_slides_for_the_labs() -> None:
    assert len(LABS) >= 9
    assert list(slides.decks()) == sorted(LABS)


@pytest.mark.parametrize("name", LABS)
def test_a_deck_has_goals_and_steps_and_needs_no_other_file(name: str) -> None:
    lab = LABS[name]
    source = folder_of(lab) / "slides.md"
    text = source.read_text(encoding="utf-8")
    assert text.startswith(f"# Lab {lab.number}: ")
    assert f"{lab.spec.minutes} minutes" in text
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert "You will be able to" in headings
    assert "Your steps" in headings
    page = slides.deck(source)
    assert page.count("<section>") == len(slides.split(text)) >= 6
    assert not re.search(r"<(img|link|script src|iframe)", page)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page)


def test_a_line_of_hyphens_in_code_begins_no_slide() -> None:
    assert len(slides.split("# a\n```\n---\n```\n---\n## b\n")) == 2


def test_notes_for_the_speaker_are_apart_from_the_slide() -> None:
    shown = slides.slide("## a\n\n???\nnote\n", ROOT)
    assert shown == "<section><h2>a</h2><aside><p>note</p></aside></section>"
