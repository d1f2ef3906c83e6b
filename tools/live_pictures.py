"""Pictures of the live page (docs/live.md), drawn by the present code from recordings of real runs.

    python tools/live_pictures.py record lab.html --topology lab    # as root: a race, a cut, its repair
    python tools/live_pictures.py film lab.html docs/img/live.webp  # the moving picture of the README
    python tools/live_pictures.py shot lab.html docs/img/live-dark.webp --theme dark --at 8
    python tools/live_pictures.py shot wide.html docs/img/live-wide.webp --at 8 --height 950

Drawing needs Playwright (pip install playwright), Pillow (with Matplotlib) and Debian's Chromium.
"""

from __future__ import annotations

import argparse
import io
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from mrclab.testbed.names import Names
from tests.support.command import Mrclab
from tests.support.live import live_page

if TYPE_CHECKING:
    from playwright.sync_api import Page

FILM_BYTES = 3_000_000
FILM_WIDTH = 860
PICTURE_WIDTH = 1100
FRAME_MS = 200
BEFORE_S, BROKEN_S, AFTER_S = 4.0, 6.0, 4.0


def record(topology: str, out: Path) -> None:
    """Record a race of MRC and RoCEv2, a cut of a link of RoCEv2's path, and its repair."""
    with live_page(Mrclab(Names.of_prefix("pictures")), "--topology", topology) as page:
        page.frame_with(lambda f: all(any(x[2] for x in one["flows"]) for one in f["transports"].values()))
        time.sleep(BEFORE_S)
        link = page.ask("used/rocev2")["link"]
        page.ask("fault", {"kind": "blackhole", "where": link})
        time.sleep(BROKEN_S)
        page.ask("restore", {"where": link})
        time.sleep(AFTER_S)
        seconds = BEFORE_S + BROKEN_S + AFTER_S + 1
        out.write_text(page.ask(f"replay.html?seconds={seconds}"), encoding="utf-8")
        page.end()


@contextmanager
def opened(replay: Path, width: int, height: int, theme: str) -> Iterator[Page]:
    """Open a recording in Chromium, paused at its beginning."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--hide-scrollbars"]
        )
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=theme)  # type: ignore[arg-type]
        page.goto(replay.resolve().as_uri())
        page.locator("[data-transport] b").first.wait_for()
        page.wait_for_function("() => M.app.source.timeline")
        page.evaluate("() => { M.app.source.timeline.playing = false; M.by('replay-bar').hidden = true; }")
        yield page
        browser.close()


def show(page: Page, number: int) -> None:
    """Show a frame of the recording, with the earlier frames as history."""
    page.evaluate(
        """(until) => {
          M.app.forget();
          const frames = M.app.source.timeline.frames;
          for (let n = Math.max(0, until - 200); n <= until; n += 1) M.app.take(frames[n]);
          M.app.show();
        }""",
        number,
    )


def times_of(page: Page) -> list[float]:
    """Return the time of each frame in seconds since the first frame (virtual time for a simulation)."""
    found: Any = page.evaluate("() => M.app.source.timeline.frames.map((f) => f.t_ms)")
    return [(t - found[0]) / 1000 for t in found]


def picture(page: Page, most: int) -> Image.Image:
    """Return a picture of the page, at most ``most`` pixels wide."""
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    if whole.width <= most:
        return whole
    return whole.resize((most, round(whole.height * most / whole.width)), Image.Resampling.LANCZOS)


def shot(
    replay: Path, out: Path, width: int, height: int, theme: str, at_s: float, plane: int | None
) -> None:
    """Draw the page as it was at ``at_s``. With ``plane``, show this plane of a large fabric."""
    with opened(replay, width, height, theme) as page:
        number = min(range(len(times := times_of(page))), key=lambda n: abs(times[n] - at_s))
        if plane is not None:
            page.evaluate("(plane) => M.app.fabric.zoom(plane)", plane)
        show(page, number)
        picture(page, PICTURE_WIDTH).save(out, quality=85, method=6)


def film(replay: Path, out: Path) -> None:
    """Draw a moving picture of a whole recording. End with an error if it is too large."""
    pictures: list[Image.Image] = []
    with opened(replay, 1280, 835, "light") as page:
        times = times_of(page)
        due = 0.0
        for number, t_s in enumerate(times):
            if t_s < due:
                continue
            due += FRAME_MS / 1000
            show(page, number)
            pictures.append(picture(page, FILM_WIDTH))
    pictures[0].save(
        out, save_all=True, append_images=pictures[1:], duration=FRAME_MS, loop=0, quality=60, method=4
    )
    print(f"{out}: {len(pictures)} pictures, {out.stat().st_size / 1e6:.2f} MB")
    if out.stat().st_size > FILM_BYTES:
        sys.exit(f"{out} is larger than {FILM_BYTES / 1e6:g} MB: record less")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Pictures of the live page.")
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("record")
    one.add_argument("out", type=Path)
    one.add_argument("--topology", default="lab")
    one = commands.add_parser("film")
    one.add_argument("replay", type=Path)
    one.add_argument("out", type=Path)
    one = commands.add_parser("shot")
    one.add_argument("replay", type=Path)
    one.add_argument("out", type=Path)
    one.add_argument("--width", type=int, default=1400)
    one.add_argument("--height", type=int, default=900)
    one.add_argument("--theme", choices=("light", "dark"), default="light")
    one.add_argument("--at", type=float, default=8.0, help="seconds after the beginning")
    one.add_argument("--plane", type=int, help="open this plane")
    options = parser.parse_args()
    if options.command == "record":
        record(options.topology, options.out)
    elif options.command == "film":
        film(options.replay, options.out)
    else:
        shot(
            *(options.replay, options.out, options.width, options.height),
            *(options.theme, options.at, options.plane),
        )


if __name__ == "__main__":
    main()
