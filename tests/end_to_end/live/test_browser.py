"""The live page in a real browser: the view of a user, and the effects of the user's clicks."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mrclab.testbed.names import Names
from tests.support.browser import NEAR_LOWER_END, chromium, view_of
from tests.support.command import Mrclab
from tests.support.live import LivePage, live_page
from tests.support.live_clicks import click_at_random

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.root]
WAIT_MS = 60_000


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def live() -> Iterator[LivePage]:
    with live_page(Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}")), "--topology", "tiny") as found:
        yield found


@pytest.fixture
def page(browser: "Browser", live: LivePage) -> Iterator["Page"]:
    with view_of(browser, live.owner, WAIT_MS) as view:
        yield view
    live.ask("restore", {"where": None})


def delivered(page: "Page", transport: str) -> float:
    node = page.locator(f"[data-transport={transport}]")
    return float(node.get_attribute("data-bps") or 0)


def until(page: "Page", script: str, argument: Any = None) -> None:
    page.wait_for_function(script, arg=argument, timeout=WAIT_MS)


RATE = "([name, low, high]) => { const n = document.querySelector(`[data-transport=${name}]`);"
RATE += " return n && Number(n.dataset.bps) >= low && Number(n.dataset.bps) <= high; }"


@pytest.mark.slow
def test_a_click_kills_a_link_and_mrc_does_not_care(page: "Page", live: LivePage) -> None:
    until(page, RATE, ["mrc", 1, 1e12])
    until(page, RATE, ["rocev2", 1, 1e12])
    link = live.ask("used/rocev2")["link"]
    page.mouse.click(*page.evaluate(NEAR_LOWER_END, link))
    assert page.inner_text("#menu h3 .exact") == link
    page.click("#menu [data-kind=blackhole]")
    until(page, RATE, ["rocev2", 0, 0])
    until(page, RATE, ["mrc", 1, 1e12])
    card = page.locator("#cards .card").first
    card.locator("[data-result=mrc] b").wait_for()
    assert link in card.inner_text()
    assert page.locator(f"[data-fault='{link}']").count() == 1
    card.locator("[data-result=mrc] button").click()
    page.locator("#packets canvas").wait_for()
    page.keyboard.press("Escape")
    page.click("#undo-button")
    page.locator(f"[data-fault='{link}']").wait_for(state="detached")
    until(page, RATE, ["rocev2", 1, 1e12])


def test_a_saved_replay_opens_from_disk_without_a_server(
    page: "Page", browser: "Browser", tmp_path: Path
) -> None:
    until(page, RATE, ["mrc", 1, 1e12])
    with page.expect_download() as download:
        page.click("#save-button")
        page.fill("#save [name=title]", "a cut")
        page.click("#save button.strong")
    file = tmp_path / "replay.html"
    download.value.save_as(file)
    offline = browser.new_context(offline=True)
    view = offline.new_page()
    errors: list[object] = []
    view.on("pageerror", lambda error: errors.append(error))
    view.goto(file.as_uri())
    view.locator("[data-transport=mrc] b").wait_for()
    assert view.inner_text("#mode") == "replay"
    assert view.inner_text("#where") == "a cut"
    assert view.locator(".hit").count() == 16
    assert not view.locator("#undo-button").is_visible()
    view.evaluate("() => { M.app.forget(); M.app.show(); }")  # as between two runs
    assert errors == []
    offline.close()


def test_on_a_phone_nothing_is_wider_than_the_screen(browser: "Browser", live: LivePage) -> None:
    view = browser.new_page(viewport={"width": 390, "height": 844})
    view.goto(live.watcher)
    view.locator("[data-transport=mrc] b").wait_for()
    assert view.evaluate("document.documentElement.scrollWidth") <= 390
    assert not view.locator("#traffic-button").is_visible()
    view.close()


@pytest.mark.slow
def test_random_clicks_break_links_and_not_the_page(page: "Page", live: LivePage) -> None:
    found = click_at_random(page, live.process.pid, float(os.environ.get("MRCLAB_CLICK_S", "12")), seed=1)
    assert found.clicks > 0
    print(found)
    assert live.process.poll() is None
    live.ask("restore", {"where": None})
    live.ask("traffic", {"transports": ["mrc", "rocev2"]})
    live.frame_with(lambda f: set(f["transports"]) == {"mrc", "rocev2"})
    until(page, RATE, ["mrc", 1, 1e12])
    until(page, RATE, ["rocev2", 1, 1e12])


def test_without_the_token_the_page_says_what_to_do(browser: "Browser", live: LivePage) -> None:
    context = browser.new_context()
    view = context.new_page()
    answer = view.goto(live.base)
    assert answer is not None
    assert answer.status == 403
    assert "printed" in view.content()
    context.close()
