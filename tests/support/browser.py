"""A real browser that opens a live page: Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Links cross each other in the middle, so clicks go near the lower end of a link.
NEAR_LOWER_END = """link => {
  const line = document.querySelector(`[data-link='${link}']`), at = line.ownerSVGElement.createSVGPoint();
  const along = (name) => 0.8 * line.getAttribute(name + 1) + 0.2 * line.getAttribute(name + 2);
  [at.x, at.y] = [along("x"), along("y")];
  line.scrollIntoView({block: "center"});
  const found = at.matrixTransform(line.getScreenCTM());
  return [found.x, found.y];
}"""
"""JavaScript that returns the point of a link to click on."""


@contextmanager
def chromium() -> Iterator["Browser"]:
    """Start a browser. If no browser is installed, fail in CI, and skip the test elsewhere."""
    path = shutil.which("chromium")
    if path is None and not os.environ.get("CI"):
        pytest.skip("no chromium (apt install chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright (pip install playwright)")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@contextmanager
def view_of(browser: "Browser", address: str, wait_ms: int) -> Iterator["Page"]:
    """Open a page and close it at the end. Fail if one of its scripts had an error."""
    view = browser.new_page(viewport={"width": 1400, "height": 900})
    view.set_default_timeout(wait_ms)
    errors: list[object] = []
    view.on("pageerror", lambda error: errors.append(error))
    view.goto(address)
    yield view
    view.close()
    assert errors == []
