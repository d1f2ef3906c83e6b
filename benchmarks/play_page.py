"""Measure how soon and how often the page that simulates in the browser draws, in headless Chromium.

    make site; python benchmarks/play_page.py [--loads 9] [--runs 5] [--seconds 6] [--pace 20000]

A file server on loopback serves the site. Each load has a new browser context, so nothing is cached. *First
drawing* is the time from the start of the navigation until a frame of the simulation is displayed. *Drawings*
are the drawings of moving frames on the fabric per second, in slow motion. In the middle of each run, a link
of RoCEv2's path is cut.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kit.results import bound, head, machine, row
from tests.support.browser import chromium
from tests.support.site import SITE, served, view

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CANNOT = 3
MOST_FIRST_S, LEAST_HZ = 5.0, 15.0
FIRST = """const look = () => {
  if (document.querySelector("[data-transport=mrc] b") && M.app.motion.drawn) {
    requestAnimationFrame(() => { window.firstMs = performance.now(); });
  } else requestAnimationFrame(look);
};
requestAnimationFrame(look);"""
"""A script that runs before the page's scripts, and records the time of the first drawing."""
COUNTS = "() => [performance.now(), M.app.motion.drawn, M.app.turn, M.app.frame.t_ms]"
CUT = """async () => {
  const actions = M.app.actions();
  await actions.fault({kind: "blackhole", where: await actions.used("rocev2")});
}"""


def first_s(browser: Browser, address: str) -> float:
    """Load the page and return the time until its first drawing, s."""
    with view(browser, f"{address}index.html", before=FIRST) as page:
        page.wait_for_function("window.firstMs")
        return float(page.evaluate("window.firstMs")) / 1000


def drawings(browser: Browser, address: str, seconds: float, pace: int) -> tuple[float, float, float]:
    """Return drawings and whole updates of the page per second, and the share of the wanted pace."""
    with view(browser, f"{address}index.html") as page:
        page.locator("[data-transport=mrc] b").wait_for()
        page.select_option("#pace", str(pace))
        page.wait_for_function("(pace) => M.app.frame.sim.pace === pace", arg=pace)
        begun = page.evaluate(COUNTS)
        page.wait_for_timeout(500 * seconds)
        page.evaluate(CUT)
        page.wait_for_timeout(500 * seconds)
        ended = page.evaluate(COUNTS)
    passed_ms, drawn, turns, simulated_ms = (b - a for a, b in zip(begun, ended, strict=True))
    return 1000 * drawn / passed_ms, 1000 * turns / passed_ms, simulated_ms * 1e9 / (passed_ms * pace)


def main() -> int:
    """Measure, print a table, and return 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description="How soon and how often the page in the browser draws.")
    parser.add_argument("--loads", type=int, default=9)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each run")
    parser.add_argument("--pace", type=int, default=20_000, help="virtual ns in a second")
    options = parser.parse_args()
    if shutil.which("chromium") is None or importlib.util.find_spec("playwright") is None:
        print("needs chromium (apt) and playwright (pip)", file=sys.stderr)
        return CANNOT
    if not (SITE / "play" / "index.html").exists():
        print("there is no site: run 'make site'", file=sys.stderr)
        return CANNOT
    print(machine())
    with served() as address, chromium() as browser:
        firsts = [first_s(browser, address) for _ in range(options.loads)]
        head()
        row("from navigation to the first drawing", len(firsts), firsts, "s")
        runs = [drawings(browser, address, options.seconds, options.pace) for _ in range(options.runs)]
    drawn, turns, kept = zip(*runs, strict=True)
    row("drawings", len(drawn), drawn, "1/s")
    row("turns of the whole page", len(turns), turns, "1/s")
    row("pace kept", len(kept), kept, "")
    good = [
        bound("first drawing, the longest, s", max(firsts), most=MOST_FIRST_S),
        bound("drawings a second, the fewest", min(drawn), least=LEAST_HZ),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
