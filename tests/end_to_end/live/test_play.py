"""The page of `make site` in a real browser, offline, from a plain file server."""

from __future__ import annotations

import functools
import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.browser import chromium
from tests.support.paths import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = ROOT / "site"
"""What `make site` builds."""
WAIT_MS = 300_000
SIZES = ((390, 844), (768, 1024), (1280, 720), (1920, 1080), (3840, 2160))
PACE = "100000"
"""The page's 100 us in a second."""
BPS = "Number(document.querySelector('[data-transport=rocev2]').dataset.bps)"
CUT = """async () => {
  const actions = M.app.actions();
  await actions.fault({kind: "blackhole", where: await actions.used("rocev2")});
}"""
SETTLED = "(t_ms) => M.app.frame.t_ms > t_ms && M.app.frame.cards[0].results.mrc.recovered_us !== null"
SHOWS = "(text) => (document.querySelector('#cards [data-result=mrc] b') || {}).textContent === text"
MRC_TIME = "#cards [data-result=mrc] b"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    if not (SITE / "play" / "index.html").exists():
        pytest.skip("'make site' was not run, or could not reach npm's registry")
    handler = functools.partial(_Quiet, directory=str(SITE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/play/"
    server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@contextmanager
def view(browser: Browser, address: str) -> Iterator[Page]:
    """Open a page that may print nothing to the console, and ask no other server."""
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(WAIT_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda r: None if r.url.startswith(("http://127.0.0.1", "data:", "blob:")) else said.append(r.url),
    )
    page.goto(address)
    yield page
    assert said == []
    page.close()


def pictures(page: Page, name: str) -> None:
    """Look for anything wider than the screen at each size, and keep pictures where they are asked for."""
    directory = os.environ.get("MRCLAB_PICTURES")
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if directory:
            page.wait_for_timeout(1500)
            page.screenshot(path=f"{directory}/{name}-{width}.png")


def test_a_cut_is_seen_again_by_going_back_and_by_its_address(browser: Browser, address: str) -> None:
    with view(browser, f"{address}index.html") as page:
        page.locator("[data-transport=rocev2]").wait_for()
        assert "times slower than real" in page.inner_text("#slower")
        page.select_option("#pace", PACE)
        page.wait_for_function(f"{BPS} > 1e10")
        page.wait_for_function("M.app.frame.t_ms > 0.1")  # Before a cut there is something to go back to.
        page.evaluate(CUT)
        page.locator(MRC_TIME).wait_for()
        page.wait_for_function(f"{BPS} === 0")
        page.locator("#chapters .made").first.click()
        page.wait_for_function(f"{BPS} > 1e10")
        page.click("#now")
        page.wait_for_function(f"{BPS} === 0")
        # The times may still grow until all losses are known.
        page.wait_for_function(SETTLED, arg=0.2 + page.evaluate("M.app.frame.t_ms"))
        page.click("#link-button")
        page.wait_for_function("location.hash.includes('blackhole')")
        page.click("#play")  # The other page needs the CPU more.
        found = page.inner_text(MRC_TIME)
        with view(browser, page.evaluate("location.href")) as shared:
            shared.wait_for_function(SHOWS, arg=found)
        pictures(page, "play")


def test_each_place_and_switch_has_a_name_and_the_keyboard_reaches_it(browser: Browser, address: str) -> None:
    with view(browser, f"{address}index.html") as page:
        page.wait_for_function(f"document.querySelector('[data-transport=rocev2]') && {BPS} > 1e10")
        seen = page.locator("body").aria_snapshot()
        for part in ('button "plane 0, rack 0 to spine 0"', 'button "plane 0, spine 0"', 'slider "position"'):
            assert part in seen
        unnamed = [
            line
            for line in seen.splitlines()
            if line.strip(" -:") in ("button", "link", "combobox", "slider")
        ]
        assert unnamed == []
        page.focus("[data-plane=p1] svg [role=button]")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.locator("#menu button").first.wait_for()
        page.keyboard.press("c")
        page.locator(".link.faulty").wait_for()
        page.keyboard.press("u")
        page.locator(".link.faulty").wait_for(state="detached")
