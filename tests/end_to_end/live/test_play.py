"""The page of `make site` in a real browser, served by a local file server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.browser import chromium
from tests.support.site import pictures, served, view

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PACE = "100000"
"""The page's pace in ns of simulated time per second: 100 us."""
BPS = "Number(document.querySelector('[data-transport=rocev2]').dataset.bps)"
CUT = """async () => {
  const actions = M.app.actions();
  await actions.fault({kind: "blackhole", where: await actions.used("rocev2")});
}"""
SETTLED = "(t_ms) => M.app.frame.t_ms > t_ms && M.app.frame.cards[0].results.mrc.recovered_us !== null"
KILLED = "Object.values(M.app.frame.faults).some((fault) => fault.kind === 'plane-death')"
SHOWS = "(text) => (document.querySelector('#cards [data-result=mrc] b') || {}).textContent === text"
MRC_TIME = "#cards [data-result=mrc] b"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def test_a_cut_is_seen_again_by_going_back_and_by_its_address(browser: Browser, address: str) -> None:
    with view(browser, f"{address}index.html") as page:
        page.locator("[data-transport=rocev2]").wait_for()
        assert "times slower than real" in page.inner_text("#slower")
        page.select_option("#pace", PACE)
        page.wait_for_function(f"{BPS} > 1e10")
        page.wait_for_function("M.app.frame.t_ms > 0.1")  # so that the page has a history to go back in
        page.evaluate(CUT)
        page.locator(MRC_TIME).wait_for()
        page.wait_for_function(f"{BPS} === 0")
        page.locator("#chapters .made").first.click()
        page.wait_for_function(f"{BPS} > 1e10")
        page.click("#now")
        page.wait_for_function(f"{BPS} === 0")
        # The measured times may still grow until all losses are known.
        page.wait_for_function(SETTLED, arg=0.2 + page.evaluate("M.app.frame.t_ms"))
        page.click("#link-button")
        page.wait_for_function("location.hash.includes('blackhole')")
        page.click("#play")  # Pause, because the next page needs the CPU.
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
        used = page.evaluate("M.app.actions().used('rocev2')")
        page.keyboard.press("x")  # This key cuts a link that is used.
        page.locator(f"#active [data-fault='{used}']").wait_for()
        for full in (True, False):
            page.keyboard.press("f")
            page.wait_for_function("(full) => Boolean(document.fullscreenElement) === full", arg=full)


def test_a_plane_killed_right_after_a_switch_meets_a_transport_that_sends(
    browser: Browser, address: str
) -> None:
    wish = json.dumps({"fabric": "tiny", "pace": int(PACE)})
    with view(browser, f"{address}index.html#{quote(wish)}") as page:
        page.wait_for_function(f"document.querySelector('[data-transport=rocev2]') && {BPS} > 1e10")
        page.click("#tour-button")
        for _ in range(4):
            page.click("#tour-next")
        page.click("#tour-go", no_wait_after=True)
        page.wait_for_function(f"{BPS} === 0")  # go-back-N waits before it sends again
        page.click("#tour-next")
        page.click("#tour-go", no_wait_after=True)
        page.wait_for_function(KILLED)
        assert page.evaluate(f"{BPS}") > 0


STRIP = """() => {
  const canvas = document.createElement("canvas");
  canvas.style.width = "500px";
  document.body.append(canvas);
  const evs = new Map([[1, {state: 1, active: 1, sent: 9, lost: 0}]]);
  M.drawStrips(canvas, [{t_ms: 1, took_ms: 10 * M.STRIP_MS, evs}], [[1, "", 0]]);
  const {data, width} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const left = Math.round(6.4 * M.size()), columns = new Set();
  data.forEach((one, n) => { if (one) columns.add((n >> 2) % width); });
  return [Math.min(...columns) >= left, columns.has(left + 50)];
}"""
"""Draw a path's strip for an update that came very late. Return whether the paths' names stay visible."""


def test_a_late_frame_is_not_drawn_over_the_names_of_paths(browser: Browser, address: str) -> None:
    with view(browser, f"{address}replay-lab.html") as page:
        page.locator("[data-transport=mrc]").wait_for()
        assert page.evaluate(STRIP) == [True, True]


def test_a_replay_plays_by_itself_but_not_where_little_motion_is_wanted(
    browser: Browser, address: str
) -> None:
    with view(browser, f"{address}replay-lab.html") as page:
        page.wait_for_function("Number(M.by('seek').value) > 3")
        page.keyboard.press("n")
        page.wait_for_function("Object.keys(M.app.frame.faults).length === 1")
    with view(browser, f"{address}replay-lab.html", reduced_motion="reduce") as page:
        page.wait_for_function("M.by('play').textContent === '▶'")
        page.wait_for_function("M.app.frame && M.app.turn > 0")
        assert page.input_value("#seek") == "0"
        page.click("#play")
        page.wait_for_function("Number(M.by('seek').value) > 3")


def test_a_recorded_training_is_played_and_moved_through(browser: Browser, address: str) -> None:
    steps = "document.querySelector('[data-training=mrc] [data-steps]')"
    with view(browser, f"{address}replay-training.html") as page:
        page.wait_for_function(f"{steps} && Number({steps}.dataset.steps) > 2")
        page.locator("#seek").press("End")
        page.wait_for_function("M.by('where').textContent.endsWith('the end')")
        whole = page.locator("[data-training=mrc]").inner_text()
        assert re.match(r"mrc\s+(\d+) of \1\s", whole)
        assert "never" in whole
        pictures(page, "training")
