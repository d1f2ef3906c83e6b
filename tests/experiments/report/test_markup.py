"""Markup in a text of a result must not become an element on a page, in the report or in the index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mrclab.experiments.report.write import write_all, write_index
from mrclab.experiments.result.file import load_result, refused_if_damaged, save_result
from mrclab.linux.errors import InputError

MARK = "zq"
MARKUP = f"\"'><{MARK} onerror=1><script>{MARK}</script>&lt;{MARK}&gt;"
Place = tuple[str | int, ...]


class Elements(HTMLParser):
    """A counter of the elements and attributes of a page that come from `MARKUP`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._script = tag == "script"
        if tag == MARK or any(name.startswith("on") or name == MARK for name, _ in attrs):
            self.found[tag] += 1

    def handle_data(self, data: str) -> None:
        if self._script and f"</script>{MARK}" in data:
            self.found["script"] += 1


def texts(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every text in a result."""
    if isinstance(value, str):
        yield place
    for key, below in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from texts(below, (*place, key))


def with_markup(result: dict[str, Any], place: Place) -> dict[str, Any]:
    found: Any = deepcopy(result)
    at = found
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] += MARKUP
    return found  # type: ignore[no-any-return]


def is_shown(result: dict[str, Any], directory: Path) -> bool:
    """Write a result's pages. Return False if the result is refused. Fail if its text becomes an element."""
    save_result(directory, result)
    try:
        load_result(directory)
        with refused_if_damaged(directory):
            page, _ = write_all(directory)
            index = write_index([directory], directory / "index.html")
    except InputError:
        return False
    for path in (page, index):
        assert not Elements(path.read_text(encoding="utf-8")).found, path
    return True


def kinds(result: dict[str, Any]) -> dict[tuple[str, ...], Place]:
    """Return one place for each kind of text. Places that differ only in numbers are of one kind."""
    return {tuple(key for key in place if isinstance(key, str)): place for place in texts(result)}


@pytest.mark.slow
def test_markup_in_any_text_makes_no_element(spray: dict[str, Any], tmp_path: Path) -> None:
    free = _taken(spray, list(kinds(spray).values()), tmp_path)
    assert len(free) > 10
    assert is_shown(_all_marked(spray, free), tmp_path)


def _all_marked(result: dict[str, Any], places: list[Place]) -> dict[str, Any]:
    for place in places:
        result = with_markup(result, place)
    return result


def _taken(result: dict[str, Any], places: list[Place], directory: Path) -> list[Place]:
    """Return the places where any text is accepted. At other places, only certain values are allowed."""
    save_result(directory, _all_marked(result, places))
    with suppress(InputError):
        load_result(directory)
        return places
    if len(places) == 1:
        return []
    half = len(places) // 2
    return _taken(result, places[:half], directory) + _taken(result, places[half:], directory)


def test_the_parser_finds_an_element_that_was_not_escaped() -> None:
    assert Elements(f"<p>{MARKUP}</p>").found
    assert not Elements("<p>&lt;zq onerror=1&gt;</p>").found
