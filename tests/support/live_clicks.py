"""Random clicks on the live page, drawn from a seed."""

from __future__ import annotations

import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from playwright.sync_api import Page

PERIOD_S = 0.5
NOTE_EVERY_S = 30.0
# Selectors of things to click, with weights. If the page has no thing of the drawn kind, draw another kind.
KINDS = {
    ".hit": 6,
    "#menu:not([hidden]) .row button": 8,
    "[data-switch]": 2,
    ".plane > button": 1,
    "[data-fault] button": 4,
    "#undo-button": 1,
    "#tour-button, #tour:not([hidden]) button": 2,
    "#traffic-button": 1,
    "#traffic:not([hidden]) input[type=checkbox], #traffic:not([hidden]) option": 2,
    "#traffic:not([hidden]) button.strong": 1,
    "[data-result] button": 1,
    "dialog[open] button": 6,
    "#theme-button": 1,
}
CLICK = """([selector, number]) => {
  const found = [...document.querySelectorAll(selector)]
    .filter((one) => !one.closest("[hidden]") && !one.disabled);
  if (!found.length) return null;
  const one = found[number % found.length];
  if (one.tagName === "OPTION") {
    one.selected = true;
    one.parentElement.dispatchEvent(new Event("change", { bubbles: true }));
  } else one.dispatchEvent(new MouseEvent("click", { bubbles: true }));
  return one.tagName;
}"""


@dataclass
class Clicked:
    """The results of the clicks."""

    clicks: int = 0
    refusals: set[str] = field(default_factory=set)
    """The errors on the page's red line, for instance for a second fault at one place."""
    rss_bytes: list[int] = field(default_factory=list)
    """The memory of the page server's process, every half minute and at the end."""
    hosts_bytes: list[int] = field(default_factory=list)
    """The memory of all hosts' processes and switches, every half minute and at the end."""
    heap_bytes: list[int] = field(default_factory=list)
    """The memory of the scripts in the browser, every half minute and at the end."""


def click_at_random(page: Page, pid: int, duration_s: float, seed: int) -> Clicked:
    """Click a random element twice a second. Record the memory of ``pid``, the page server's process."""
    rng = random.Random(seed)
    found = Clicked()
    begun = time.monotonic()
    noted = begun - NOTE_EVERY_S
    while (now := time.monotonic()) < begun + duration_s:
        if now >= noted + NOTE_EVERY_S:
            noted = now
            _note(found, page, pid)
        kinds = [rng.choices(list(KINDS), list(KINDS.values()))[0] for _ in range(20)]
        number = rng.randrange(1 << 20)
        if any(page.evaluate(CLICK, [kind, number]) is not None for kind in kinds):
            found.clicks += 1
        notice = page.locator("#notice")
        if notice.is_visible():
            found.refusals.add(notice.inner_text())
        page.wait_for_timeout(max(0, begun + found.clicks * PERIOD_S - time.monotonic()) * 1000)
    _note(found, page, pid)
    return found


def _note(found: Clicked, page: Page, pid: int) -> None:
    server = psutil.Process(pid)
    found.rss_bytes.append(server.memory_info().rss)
    hosts = 0
    for process in server.children(recursive=True):
        with suppress(psutil.Error):  # a process may end now, when the traffic is replaced
            hosts += process.memory_info().rss
    found.hosts_bytes.append(hosts)
    found.heap_bytes.append(int(page.evaluate("performance.memory.usedJSHeapSize")))
