"""The site that `make site` builds, served by a local file server for a real browser."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = ROOT / "site"
"""The folder that `make site` writes."""
WAIT_MS = 300_000
SIZES = ((390, 844), (768, 1024), (1280, 720), (1920, 1080), (3840, 2160))


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def served() -> Iterator[str]:
    """Serve the site. Yield the address of the simulator's pages. Skip the test if the site lacks them."""
    if not (SITE / "play" / "lab.html").exists():
        pytest.skip("'make site' was not run, or could not reach npm's registry or PyPI")
    handler = functools.partial(_Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/play/"
    server.shutdown()


@contextmanager
def view(
    browser: Browser,
    address: str,
    reduced_motion: Literal["reduce", "no-preference"] | None = None,
    before: str | None = None,
) -> Iterator[Page]:
    """Open a page. Fail if it prints to the console or sends a request to another server.

    ``before`` is a script that runs before the page's scripts. A failure message shows the console's text.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion=reduced_motion)
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("http://127.0.0.1", "data:", "blob:")) else said.append(r.url),
    )
    if before:
        page.add_init_script(before)
    page.goto(address)
    try:
        yield page
    except BaseException as error:
        error.add_note(f"the console of {address}: {said}")
        raise
    assert said == []
    page.close()


def pictures(page: Page, name: str) -> None:
    """Check that the page fits into every screen width. Save pictures if MRCLAB_PICTURES is set."""
    directory = os.environ.get("MRCLAB_PICTURES")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if directory:
            page.wait_for_timeout(1500)
            page.screenshot(path=f"{directory}/{name}-{width}.png")
