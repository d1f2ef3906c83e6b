"""The page of a result in a real browser: light and dark, on a wide screen and on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from mrclab.experiments.report.write import write_all
from tests.support.browser import chromium

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
READABLE = 4.5
"""The smallest contrast that text may have (WCAG 2.2, success criterion 1.4.3, level AA)."""
PHONE = 390

FAINTEST = """() => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const found = parts(getComputedStyle(node).backgroundColor);
      if (found.length === 3 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  };
  const shown = (node) => node.offsetParent !== null && [...node.childNodes].some(
    (child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
  return [...document.querySelectorAll("main *:not(svg *)")].filter(shown).map((node) => {
    const two = [light(parts(getComputedStyle(node).color)), light(ground(node))].sort((a, b) => b - a);
    return [(two[0] + 0.05) / (two[1] + 0.05), node.tagName + " " + node.textContent.trim().slice(0, 60)];
  }).sort((a, b) => a[0] - b[0])[0];
}"""
"""Return the smallest contrast of all text on the page, and that text."""

GROUND = "() => getComputedStyle(document.querySelector('main')).backgroundColor"
FILTERS = "() => [...document.querySelectorAll('figure > svg')].map((svg) => getComputedStyle(svg).filter)"
WIDER = """(width) => [...document.querySelectorAll("main > *, figure, table, pre")]
  .filter((node) => {
    let by = node;
    while (by && !["auto", "scroll"].includes(getComputedStyle(by).overflowX)) by = by.parentElement;
    return (by || node).getBoundingClientRect().right > width + 0.5;
  })
  .map((node) => node.tagName + "." + node.className)"""
"""Return the elements that are wider than the screen and not inside a part that scrolls."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(spray_directory: Path) -> str:
    return write_all(spray_directory)[0].as_uri()


@contextmanager
def seen(browser: Browser, address: str, theme: Theme = "light", width: int = 1400) -> Iterator[Page]:
    """Open the page of the result from its file."""
    view = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=theme)
    try:
        view.goto(address)
        yield view
    finally:
        view.close()


@pytest.mark.parametrize("theme", THEMES)
def test_all_text_can_be_read(browser: Browser, address: str, theme: Theme) -> None:
    with seen(browser, address, theme) as view:
        view.evaluate("() => document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        contrast, text = view.evaluate(FAINTEST)
    assert contrast >= READABLE, text


def test_a_dark_page_has_dark_pictures(browser: Browser, address: str) -> None:
    found = {}
    for theme in THEMES:
        with seen(browser, address, theme) as view:
            ground = [int(part) for part in view.evaluate(GROUND).strip("rgb()").split(",")]
            found[theme] = (sum(ground) / 3, set(view.evaluate(FILTERS)))
    assert found["light"] == (255, {"none"})
    level, filters = found["dark"]
    assert level < 40
    assert len(filters) == 1
    assert "invert" in filters.pop()


@pytest.mark.parametrize("width", [PHONE, 820])
def test_nothing_is_wider_than_the_screen(browser: Browser, address: str, width: int) -> None:
    """A wide part, such as a table, has a separate scroll bar."""
    with seen(browser, address, width=width) as view:
        assert view.evaluate("document.documentElement.scrollWidth") <= width
        assert view.evaluate(WIDER, width) == []
        view.mouse.wheel(500, 0)
        assert view.evaluate("window.scrollX") == 0


def test_on_a_phone_pictures_stay_as_large_as_their_words_need(browser: Browser, address: str) -> None:
    """Each picture scrolls in its frame. If it were as narrow as the screen, its marks could not be read."""
    widths = "() => [...document.querySelectorAll('figure:not(.drawing) > svg')].map((s) => s.clientWidth)"
    with seen(browser, address, width=PHONE) as view:
        found = view.evaluate(widths)
    assert len(found) >= 6
    assert min(found) >= 600
