"""The page of `mrclab live --target sim` in a real browser, as an ordinary user sees it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.support.browser import chromium, view_of

WAIT_MS = 60_000
STAGES = ((1280, 720), (1920, 1080))
CUT = """async () => {
  const actions = M.app.actions();
  await actions.fault({kind: "blackhole", where: await actions.used("rocev2")});
}"""


@contextmanager
def started(port: str = "0") -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a page. Yield its process, and the owner's address and the viewers' address."""
    words = ["live", "--target", "sim", "--topology", "tiny", "--port", port]
    process = subprocess.Popen([sys.executable, "-m", "mrclab", *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found: list[str] = []
    while len(found) < 2:
        line = process.stdout.readline()
        assert line
        found += re.findall(r"http://\S+", line)
    yield process, found
    process.terminate()
    process.communicate()


@pytest.fixture
def addresses() -> Iterator[list[str]]:
    with started() as (_, found):
        yield found


@pytest.fixture
def address(addresses: list[str]) -> str:
    return addresses[0]


@pytest.mark.slow
def test_a_cut_is_drawn_and_one_can_go_back_to_it(address: str) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        page.wait_for_function(
            "() => Number(document.querySelector('[data-transport=rocev2]').dataset.bps) > 1e10"
        )
        assert re.search(r"simulated, 50,000 times slower than real", page.inner_text("#slower"))
        page.evaluate(CUT)
        page.locator("#cards [data-result=mrc] b").wait_for()
        page.wait_for_function(
            "() => Number(document.querySelector('[data-transport=rocev2]').dataset.bps) === 0"
        )
        page.locator("#chapters .made").first.wait_for()
        page.locator("#chapters .made").first.click()
        assert page.locator("#now").is_visible()
        page.wait_for_function(
            "() => Number(document.querySelector('[data-transport=rocev2]').dataset.bps) > 1e10"
        )
        page.click("#now")
        page.wait_for_function(
            "() => Number(document.querySelector('[data-transport=rocev2]').dataset.bps) === 0"
        )
        assert page.evaluate("M.app.motion.drawn") > 10
        page.click("#undo-button")
        page.locator("#active .chip").wait_for(state="detached")


@pytest.mark.slow
def test_a_presenter_plays_the_tour_and_the_cut_never_leaves_the_screen(address: str) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        page.keyboard.press("PageDown")  # opens the tour
        page.keyboard.press("PageDown")  # goes to the tour's second step
        page.locator("#tour-go", has_text="Cut a link").wait_for()
        page.keyboard.press("PageDown")  # carries the step out
        page.locator(".link.faulty").wait_for()
        page.wait_for_function(
            "() => document.querySelector('#sentence').innerText.includes('has been silent for')"
        )
        page.wait_for_function(
            "() => document.querySelector('#sentence').innerText.includes('was whole after')"
        )
        page.wait_for_function(
            "() => document.querySelector('#announce').innerText.includes('RoCEv2 is silent')"
        )
        assert re.match(r"Silent cut: plane \d, rack \d to spine \d", page.inner_text("#sentence"))
        for width, height in STAGES:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(f"() => M.by('fabric').getBoundingClientRect().bottom <= {height}")
            assert page.evaluate("document.documentElement.scrollHeight") <= height
            box = page.locator(".link.faulty").bounding_box()
            assert box is not None
            assert box["y"] > 0
            assert box["y"] + box["height"] < height
        page.keyboard.press("PageDown")  # goes to the third step
        page.keyboard.press("PageDown")  # carries out the third step: restores the link
        page.locator(".link.faulty").wait_for(state="detached")
        page.wait_for_function("() => document.querySelector('#sentence').innerText.startsWith('Restored')")


@pytest.mark.slow
def test_the_sentence_speaks_of_a_fault_that_is_still_there(address: str) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        page.wait_for_function("() => M.app.history.length > 30")
        page.evaluate(CUT)
        first = page.wait_for_function("() => Object.keys(M.app.frame.faults)[0]").json_value()
        other = next(
            name
            for name in page.evaluate("M.app.about.fabric.links.map(([name]) => name)")
            if name != first and "-t1-" in name
        )
        page.evaluate("(where) => M.app.fault({kind: 'blackhole', where})", other)
        page.wait_for_function("() => Object.keys(M.app.frame.faults).length === 2")
        page.evaluate("(where) => M.app.undo(where)", other)
        page.wait_for_function("() => Object.keys(M.app.frame.faults).length === 1")
        words = page.evaluate("(where) => M.words(where)", first)
        page.wait_for_function(
            "(words) => M.by('sentence').innerText.startsWith(`Silent cut: ${words}. `)", arg=words
        )
        silent = "() => M.by('sentence').innerText.includes('RoCEv2 has been silent for')"
        page.wait_for_function(silent)
        # The jump goes to an earlier frame, in which RoCEv2 must be silent, too.
        page.wait_for_function("() => M.app.source.timeline.frames.at(-3).t_ms > M.app.story.silent.rocev2")
        # After a jump far behind the cut, the page still shows how long RoCEv2 has been silent.
        page.evaluate(
            "M.SHOWN_MS = 1e-6; M.app.source.timeline.seek(M.app.source.timeline.frames.length - 2)"
        )
        page.wait_for_function("() => M.by('sentence').innerText.includes('RoCEv2 has been silent for')")
        page.evaluate("M.app.source.timeline.toEnd()")
        assert page.evaluate(MOVES)
        page.route("**/recent", lambda route: route.fulfill(json={"frames": []}))
        page.reload()
        page.wait_for_function("() => M.by('sentence').innerText.includes('RoCEv2 is silent.')")


@pytest.mark.slow
def test_a_page_whose_server_was_replaced_says_where_to_look() -> None:
    with (
        started() as (process, [address, _]),
        chromium() as browser,
        view_of(browser, address, WAIT_MS) as page,
    ):
        page.locator("[data-transport=rocev2]").wait_for()
        process.kill()
        page.wait_for_function("() => M.by('notice').innerText.includes('trying again')")
        with started(re.findall(r":(\d+)/", address)[0]):  # it has other tokens
            page.wait_for_function("() => M.by('notice').innerText.includes('open the address')")


@pytest.mark.slow
def test_keys_work_while_the_slider_has_the_focus(address: str) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        page.wait_for_function("() => M.app.history.length > 10")
        page.focus("#seek")
        page.keyboard.press("u")
        page.keyboard.press(" ")
        page.wait_for_function(PAUSED)
        page.keyboard.press("x")
        page.keyboard.press(" ")
        page.locator("#active .chip").wait_for()


MOVES = """async () => {
  const before = M.app.frame.t_ms;
  await new Promise((done) => setTimeout(done, 1500));
  return M.app.frame.t_ms > before;
}"""
PAUSED = "() => M.by('play').getAttribute('aria-label') === 'play'"
PLAYS = "() => M.by('play').getAttribute('aria-label') === 'pause'"


@pytest.mark.slow
def test_a_viewer_pauses_one_page_and_the_owner_every_page(addresses: list[str]) -> None:
    owned, watched = addresses
    with (
        chromium() as browser,
        view_of(browser, owned, WAIT_MS) as owner,
        view_of(browser, watched, WAIT_MS) as viewer,
    ):
        for page in (owner, viewer):
            page.locator("[data-transport=rocev2]").wait_for()
        viewer.click("#play")
        assert not viewer.evaluate(MOVES)
        assert owner.evaluate(MOVES)
        viewer.click("#now")
        assert viewer.evaluate(MOVES)
        owner.click("#play")
        viewer.wait_for_function(PAUSED)
        assert not owner.evaluate(MOVES)
        owner.reload()
        owner.locator("[data-transport=rocev2]").wait_for()
        owner.wait_for_function(PAUSED)
        owner.click("#play")
        viewer.wait_for_function(PLAYS)
        for page in (owner, viewer):
            assert page.evaluate(MOVES)


@pytest.mark.slow
def test_a_link_is_cut_with_the_keyboard_alone(address: str) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        stops = page.locator("[data-plane] [role=button][tabindex='0']")
        assert stops.count() == 2  # one for each plane
        group = page.get_by_role("group", name="plane 1")
        assert group.get_by_role("button", name="plane 1, rack 0 to spine 1").count() == 1
        stops.nth(1).focus()
        page.keyboard.press("ArrowRight")
        name = page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("Enter")
        page.locator("#menu h3").wait_for()
        assert page.inner_text("#menu h3").startswith(name)
        page.keyboard.press("c")
        page.locator("#active .chip").wait_for()
        assert page.inner_text("#active .chip").startswith(name)
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == name  # the focus is back
        page.keyboard.press("u")
        page.locator("#active .chip").wait_for(state="detached")
        page.select_option("#place", value="switch p0-t1-0")
        page.locator("#menu [data-kind='switch-death']").wait_for()


@pytest.mark.slow
def test_loaded_again_the_page_still_shows_what_was_seen_and_saving_shows_that_it_prepares(
    address: str,
) -> None:
    with chromium() as browser, view_of(browser, address, WAIT_MS) as page:
        page.locator("[data-transport=rocev2]").wait_for()
        page.wait_for_function("() => M.app.history.length > 30")
        seen = page.evaluate("M.app.history[20].t_ms")
        page.reload()
        page.wait_for_function("() => M.app.history && M.app.history.length > 30")
        assert page.evaluate("M.app.history[0].t_ms") <= seen
        page.route("**/replay.html*", lambda route: held.append(route))
        held: list[Any] = []
        page.click("#save-button")
        page.click("#save button.strong")
        page.locator("#save button.strong", has_text="preparing").wait_for()
        with page.expect_download():
            held.pop().continue_()
