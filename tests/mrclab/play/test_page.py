"""The simulation in the browser: input and output in JSON, and a URL that repeats a run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mrclab.play.page import Page
from mrclab.topologies import fabric_text, load_fabric

TEXTS = {"tiny": fabric_text(load_fabric("tiny"))}
TINY = {"fabric": "tiny"}


def opened(wish: object) -> tuple[Page, dict[str, Any]]:
    page = Page(TEXTS, "1")
    return page, json.loads(page.open(json.dumps(wish)))


def test_an_address_shows_what_another_viewer_has_seen() -> None:
    page, about = opened(TINY)
    assert about["owner"]
    assert about["sim"]["fabrics"] == ["tiny"]
    page.turn(1.0, lambda: True)
    link = json.loads(page.ask("used/rocev2", "null"))["link"]
    page.ask("fault", json.dumps({"kind": "blackhole", "where": link}))
    seen = json.loads(page.turn(4.0, lambda: True))
    again, _ = opened(json.loads(page.link()))
    shown = json.loads(again.turn(5.0, lambda: True))
    assert shown["cards"] == seen["cards"]
    assert shown["cards"][0]["results"]["mrc"]["recovered_us"] is not None


def test_a_turn_ends_when_its_time_is_over() -> None:
    page, _ = opened(TINY)
    assert json.loads(page.turn(1.0, lambda: False))["sim"]["t_ns"] == 0


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ([], "address describes"),
        ({"fabric": "pod"}, "no fabric 'pod'"),
        ({"fabric": "tiny", "transports": ["tcp"]}, "no transport"),
        ({"fabric": "tiny", "events": [[1, "fault", {"kind": "blackhole", "where": "x"}]]}, "x"),
        ({"fabric": "tiny", "pace": "fast"}, "fast"),
    ],
)
def test_an_address_that_makes_no_sense_is_refused(wish: object, words: str) -> None:
    _, answer = opened(wish)
    assert words in answer["error"]


def test_a_request_that_makes_no_sense_is_refused() -> None:
    page, _ = opened(TINY)
    assert "error" in json.loads(page.ask("fault", "[]"))
    assert "error" in json.loads(page.ask("fault", "not JSON"))
    assert "no scene" in json.loads(Page(TEXTS, "1").ask("show", "{}"))["error"]
