"""The demo of docs/live.md: press its buttons in order, and check that the page does as the text promises."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mrclab.testbed.names import Names
from mrclab.topologies import load_fabric
from tests.support.browser import NEAR_LOWER_END, chromium, view_of
from tests.support.command import Mrclab
from tests.support.live import LivePage, live_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

DOCUMENT = Path(__file__).parents[3] / "docs/live.md"
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(600)]
WAIT_MS = 120_000
LAB = load_fabric("lab")
SIZES = ((1400, 900, "light"), (820, 1180, "dark"), (390, 844, "light"), (1400, 900, "dark"))
STAGES = ((1920, 1080), (1280, 720))
"""Screen sizes of projectors. The demo runs at the last size."""
WATCH = """() => {
  const seen = (mark) => {
    const {left, right, top, bottom} = mark.getBoundingClientRect();
    let [l, r, t, b] = [0, innerWidth, 0, innerHeight];
    for (let one = mark.parentElement; one; one = one.parentElement) {
      if (getComputedStyle(one).overflow === "visible") continue;
      const box = one.getBoundingClientRect();
      [l, r] = [Math.max(l, box.left), Math.min(r, box.right)];
      [t, b] = [Math.max(t, box.top), Math.min(b, box.bottom)];
    }
    return left >= l - 1 && right <= r + 1 && top >= t - 1 && bottom <= b + 1;
  };
  window.marks = () => [...document.querySelectorAll(".link.faulty, .node.faulty, .plane.dead")];
  window.whole = () => document.documentElement.scrollHeight <= innerHeight && window.marks().every(seen);
  Object.assign(window, {watches: true, watched: 0, left: 0});
  const look = () => {
    if (window.watches && window.marks().length) { window.watched += 1; window.left += !window.whole(); }
    requestAnimationFrame(look);
  };
  look();
}"""
"""Count the redraws that show a fault, and how often a part of the fault is off the screen."""


def buttons() -> list[list[str]]:
    """Return the buttons that each step of the demo names, in order."""
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.split("## A demo of five minutes")[1].split("\n## ")[0]
    steps = re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]
    return [
        [" ".join(found.split()) for found in re.findall(r"(?<!\*)\*([^*]+)\*(?!\*)", step)] for step in steps
    ]


class Demo:
    """Presses the demo's buttons in order, and no others."""

    def __init__(self, page: "Page", steps: list[list[str]]) -> None:
        self.page = page
        self._steps = steps
        self._now: list[str] = []
        self._number = 0
        self._stage()
        page.evaluate(WATCH)

    def _stage(self) -> None:
        width, height = STAGES[-1]
        self.page.set_viewport_size({"width": width, "height": height})
        self.until("(height) => M.by('fabric').getBoundingClientRect().bottom <= height", height)

    def begin(self) -> None:
        """Begin the next step. Every button of the previous step must have been pressed."""
        assert self._now == []
        self._now = self._steps.pop(0)
        self._number += 1

    def press(self, label: str) -> None:
        """Press a button. It must be the next one that the demo names."""
        assert self._now.pop(0) == label
        name = re.compile(rf"^{re.escape(label)}( .)?$")
        button = self.page.get_by_role("button", name=name).first
        button.click()

    def until(self, script: str, argument: Any = None) -> None:
        """Wait until a script returns true in the page."""
        self.page.wait_for_function(script, arg=argument, timeout=WAIT_MS)

    def keep(self, what: str) -> None:
        """Check that the page fits the usual resolutions of projectors.

        Save pictures if MRCLAB_PICTURES names a directory.
        """
        directory = os.environ.get("MRCLAB_PICTURES")
        self.page.evaluate("window.watches = false")  # Do not count redraws for a new size.
        for width, height in STAGES:
            self.page.set_viewport_size({"width": width, "height": height})
            self.until("([width, height]) => innerWidth === width && window.whole()", [width, height])
            if directory:
                self.page.wait_for_timeout(700)
                self.page.screenshot(path=f"{directory}/demo-{self._number}-{what}-{width}.png")
        for width, height, theme in SIZES if directory else ():
            self.page.set_viewport_size({"width": width, "height": height})
            self.page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
            self.page.wait_for_timeout(700)
            self.page.screenshot(path=f"{directory}/demo-{self._number}-{what}-{width}-{theme}.png")
        self._stage()
        self.page.evaluate("window.watches = true")

    def end(self) -> None:
        """Check that every button was pressed, and that every fault was visible."""
        assert (self._now, self._steps) == ([], [])
        assert self.page.evaluate("window.watched") > 0
        assert self.page.evaluate("window.left") == 0


DELIVERS = (
    "(name) => Number((document.querySelector(`[data-transport=${name}]`) || {dataset: {}}).dataset.bps) > 0"
)
STANDS = "(name) => document.querySelector(`[data-transport=${name}] b`).textContent === '0 bit/s'"
GREEN = "() => M.app.frame.paths.mrc.length > 1 && M.app.frame.paths.mrc.every((row) => row[2] === M.EV.GOOD)"
KILLED = "([kind]) => Object.values(M.app.frame.faults).some((fault) => fault.kind === kind)"


@pytest.fixture(scope="module")
def live() -> Iterator[LivePage]:
    with live_page(Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}")), "--topology", "lab") as found:
        yield found


@pytest.fixture
def page(live: LivePage) -> Iterator["Page"]:
    with chromium() as browser, view_of(browser, live.owner, WAIT_MS) as view:
        yield view


def test_the_demo_can_be_played_through_as_it_is_written(page: "Page") -> None:
    demo = Demo(page, buttons())
    demo.begin()
    demo.press("Tour")
    for name in ("mrc", "rocev2"):
        demo.until(DELIVERS, name)
    demo.until(GREEN)
    assert page.evaluate("M.app.frame.paths.rocev2.length") == 1
    assert page.evaluate("M.app.frame.paths.mrc.length") == len(LAB.paths(*LAB.far_ends()))
    demo.keep("spray")

    demo.begin()
    demo.press("Next")
    demo.press("Cut a link of RoCEv2's path")
    demo.until(STANDS, "rocev2")
    demo.until(DELIVERS, "mrc")
    assert page.locator(".link.faulty").count() == 1
    card = page.locator("#cards .card").first
    card.locator("[data-result=mrc] b").wait_for()
    demo.keep("cut")
    demo.press("packets")
    page.locator("#packets canvas").wait_for()
    demo.press("Slow motion")
    demo.keep("packets")
    demo.press("Close")

    demo.begin()
    demo.press("Next")
    demo.press("Restore the link")
    demo.until(DELIVERS, "rocev2")
    demo.until(GREEN)
    assert page.locator(".link.faulty").count() == 0
    demo.keep("healed")

    demo.begin()
    demo.press("Next")
    demo.press("Start an incast")
    demo.until("() => M.app.frame.transports.mrc.flows.length === 4")
    demo.until(DELIVERS, "mrc")
    last = LAB.far_ends()[1]
    switch = LAB.host(last).ports[0].t0
    page.locator(f"[data-switch='{switch}']").click()
    page.locator("#menu dt", has_text="trimmed").wait_for()
    demo.until(DELIVERS, "mrc")
    demo.keep("incast")

    demo.begin()
    demo.press("Next")
    demo.press("Kill a T1")
    demo.until(KILLED, ["switch-death"])
    demo.until(DELIVERS, "mrc")
    demo.keep("dead-switch")
    demo.press("Next")
    demo.press("Kill RoCEv2's plane")
    demo.until(KILLED, ["plane-death"])
    demo.until(DELIVERS, "mrc")
    demo.keep("dead-plane")
    demo.press("Undo all")
    page.locator("[data-fault]").first.wait_for(state="detached")
    demo.until(GREEN)
    demo.press("Switch on")
    demo.until("() => M.app.frame.mapper && !M.app.frame.mapper.starting")
    link = next(path.links[1] for path in LAB.paths(*LAB.far_ends()) if path.plane == 1)
    page.mouse.click(*page.evaluate(NEAR_LOWER_END, link))
    demo.press("Cut silently")
    page.locator(f"li.right[data-verdict='{link}']").wait_for()
    demo.keep("clustermapper")
    demo.press("Undo all")
    page.locator(f"[data-verdict='{link}']").wait_for(state="detached")
    demo.end()
