"""The cost of the live page: recovery times with and without the page in a browser, and the time of clicks.

    python benchmarks/live_page.py [--topology lab] [--rounds 2] [--faults 20]     # as root; some 5 minutes
    python benchmarks/live_page.py --topology tiny --clicks 600                   # memory under random clicks

One session of `mrclab live` sends a stream over MRC. Each round cuts links of its fabric one after another,
once without a viewer and once with the page open in Chromium on the same machine. The order alternates. The
recovery times are read from the page's cards. The benchmark also measures the time from a click on "Cut
silently" until the fault is in the switch's table (including Playwright's time), and how many frames reach
the page per second.

With ``--clicks N`` the page gets two random clicks per second for N seconds instead. The table then has the
memory of the page's process, of the processes at hosts and switches, and of the scripts in the browser.

The session polls the agents ten times a second and captures packets, with and without a viewer. So these
times cannot be compared with those of `mrclab run`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.kit.results import bound, head, machine, row
from mrclab.testbed.names import Names
from mrclab.topologies import Fabric, load_fabric
from tests.support.command import Mrclab
from tests.support.live import LivePage, live_page
from tests.support.live_clicks import click_at_random

if TYPE_CHECKING:
    from playwright.sync_api import Page

CANNOT = 3
MOST_GROWTH = 1.1
MOST_RATIO, MOST_CLICK_MS, LEAST_HZ = 1.15, 150.0, 9.5
COUNT_FRAMES = """() => { const take = M.app.take.bind(M.app); window.taken = 0;
  M.app.take = (frame) => { window.taken += 1; return take(frame); }; }"""


def recovered_us(page: LivePage, link: str) -> float:
    """Cut a link, and return MRC's recovery time. Repair the link and wait until all paths are in use."""
    number = page.ask("fault", {"kind": "blackhole", "where": link})["card"]
    result = told(page, number)
    page.ask("restore", {"where": link})
    page.frame_with(lambda f: not f["faults"] and all(path[2] == 1 for path in f["paths"]["mrc"]))
    return float(result["recovered_us"])


def told(page: LivePage, number: int) -> Any:
    """Wait until MRC has recovered from a fault, and return its times."""

    def result(frame: dict[str, Any]) -> Any:
        mine = [card["results"].get("mrc") for card in frame["cards"] if card["number"] == number]
        return mine[0] if mine and mine[0] and mine[0]["recovered_us"] is not None else None

    return result(page.frame_with(result))


@contextmanager
def viewer(address: str) -> Iterator[Page]:
    """Open the page in Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(address)
        page.locator("[data-transport=mrc] b").wait_for()
        yield page
        browser.close()


def click_ms(page: LivePage, view: Page, link: str) -> float:
    """Return the time from a click until the fault is made."""
    view.evaluate("(link) => M.app.choose({ place: 'link', where: link })", link)
    begun_ns = time.monotonic_ns()
    view.evaluate("document.querySelector('#menu [data-kind=blackhole]').click()")
    frame = page.frame_with(lambda f: link in f["faults"])
    made_ns = next(card["t_ns"] for card in reversed(frame["cards"]) if card["where"] == link)
    told(page, frame["faults"][link]["card"])
    page.ask("restore", {"where": link})
    page.frame_with(lambda f: not f["faults"] and all(path[2] == 1 for path in f["paths"]["mrc"]))
    return (made_ns - begun_ns) / 1e6


def frames_per_s(view: Page) -> float:
    """Return the number of frames that reach the page per second."""
    view.evaluate(COUNT_FRAMES)
    begun = time.monotonic()
    view.wait_for_timeout(3000)
    return float(view.evaluate("window.taken")) / (time.monotonic() - begun)


def links_of(fabric: Fabric) -> list[str]:
    """Return the T0-T1 links over which the stream's sender may send."""
    return sorted({path.links[1] for path in fabric.paths(*fabric.far_ends()) if path.t1 is not None})


def clicked(topology: str, seconds: float) -> int:
    """Click at random and print the memory over time. Return 1 if memory grew or an error occurred."""
    errors: list[str] = []
    with live_page(Mrclab(Names.of_prefix(f"bench{os.getpid()}")), "--topology", topology) as page:
        with viewer(page.owner) as view:
            view.on("pageerror", lambda error: errors.append(str(error)))
            found = click_at_random(view, page.process.pid, seconds, seed=1)
        alive = page.process.poll() is None
        kept = [line for line in page.ask("metrics").splitlines() if line.startswith("mrclab_live_kept")]
        said = page.end()
    print(f"{found.clicks} clicks in {seconds:g} s; refusals that the page showed:")
    for refusal in sorted(found.refusals):
        print(f"  {refusal}")
    print("every half minute, in MB: page's process, processes at hosts and switches, scripts in the browser")
    for at, sizes in enumerate(zip(found.rss_bytes, found.hosts_bytes, found.heap_bytes, strict=True)):
        print(f"  {at / 2:5.1f} min " + "".join(f"{size / 1e6:8.0f}" for size in sizes))
    print("\n".join(kept))
    half = len(found.rss_bytes) // 2
    grown = max(found.rss_bytes[half:]) / max(found.rss_bytes[1 : half + 1])
    good = [
        bound("errors in the page", float(len(errors)), most=0.0),
        bound("the server lives (1)", float(alive), least=1.0),
        bound("tracebacks of the server", float(said.count("Traceback")), most=0.0),
        bound("most memory, second half over first", grown, most=MOST_GROWTH),
    ]
    return 0 if all(good) else 1


def main() -> int:
    """Measure, print a table, and return 1 if a bound was missed."""
    parser = argparse.ArgumentParser(description="What the live page costs.")
    parser.add_argument("--topology", default="lab")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--faults", type=int, default=20, help="in each half of a round")
    parser.add_argument("--clicks", type=float, metavar="SECONDS", help="click at random for so long instead")
    options = parser.parse_args()
    if (
        os.geteuid() != 0
        or shutil.which("chromium") is None
        or importlib.util.find_spec("playwright") is None
    ):
        print("needs root, chromium (apt) and playwright (pip)", file=sys.stderr)
        return CANNOT
    print(machine())
    if options.clicks is not None:
        return clicked(options.topology, options.clicks)
    rng = random.Random(1)
    links = links_of(load_fabric(options.topology))
    times: dict[bool, list[float]] = {True: [], False: []}
    clicks: list[float] = []
    rates: list[float] = []
    with live_page(Mrclab(Names.of_prefix(f"bench{os.getpid()}")), "--topology", options.topology) as page:
        page.ask("traffic", {"transports": ["mrc"]})
        page.frame_with(lambda f: list(f["transports"]) == ["mrc"] and f["transports"]["mrc"]["flows"][0][2])
        for number in range(options.rounds):
            for watched in (number % 2 == 0, number % 2 == 1):
                if not watched:
                    times[False] += [recovered_us(page, rng.choice(links)) for _ in range(options.faults)]
                    continue
                with viewer(page.owner) as view:
                    times[True] += [recovered_us(page, rng.choice(links)) for _ in range(options.faults)]
                    clicks.append(click_ms(page, view, rng.choice(links)))
                    rates.append(frames_per_s(view))
        page.end()
    head()
    row("recovered, nobody watches", len(times[False]), [t / 1e3 for t in times[False]], "ms")
    row("recovered, the page open", len(times[True]), [t / 1e3 for t in times[True]], "ms")
    row("from click to fault", len(clicks), clicks, "ms")
    row("frames that reach the page", len(rates), rates, "1/s")
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    kept = [
        bound("median recovered, open over closed", ratio, most=MOST_RATIO),
        bound("from click to fault, the longest, ms", max(clicks), most=MOST_CLICK_MS),
        bound("frames a second, the fewest", min(rates), least=LEAST_HZ),
    ]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
