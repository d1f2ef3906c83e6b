"""The page of `make site` in a real browser, offline, from a plain file server."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Iterator

import pytest

from tests.support.browser import chromium
from tests.support.paths import ROOT

SITE = ROOT / "site"
"""What `make site` builds."""
WAIT_MS = 60_000
SIZES = ((390, 844), (1280, 720), (1920, 1080), (3840, 2160))
BPS = "Number(document.querySelector('[data-transport=rocev2]').dataset.bps)"
CUT = """async () => {
  const actions = M.app.actions();
  await actions.fault({kind: "blackhole", where: await actions.used("rocev2")});
}"""


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
    yield f"http://127.0.0.1:{server.server_port}/play/index.html"
    server.shutdown()


@pytest.mark.slow
def test_cut_go_back_share(address: str) -> None:
    with chromium() as browser:
        said: list[str] = []
        foreign: list[str] = []
        page = browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda r: foreign.append(r.url) if "127.0.0.1" not in r.url else None)
        page.goto(address)
        page.locator("[data-transport=rocev2]").wait_for()
        page.wait_for_function(f"{BPS} > 1e10")
        assert "times slower than real" in page.inner_text("#slower")
        page.wait_for_function("M.app.frame.t_ms > 0.06")  # Before a cut there is something to go back to.
        page.evaluate(CUT)
        page.locator("#cards [data-result=mrc] b").wait_for()
        page.wait_for_function(f"{BPS} === 0")
        page.locator("#chapters .made").first.click()
        page.wait_for_function(f"{BPS} > 1e10")
        page.click("#now")
        page.wait_for_function(f"{BPS} === 0")
        page.click("#link-button")
        page.wait_for_function("location.hash.includes('blackhole')")
        times = page.inner_text("#cards [data-result=mrc] b")
        shared = browser.new_page()
        shared.goto(page.url)
        shared.locator("#cards [data-result=mrc] b").wait_for(timeout=WAIT_MS)
        assert shared.inner_text("#cards [data-result=mrc] b") == times
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert said == []
        assert foreign == []
