"""Make a video of a minute from the simulator's replays: WebM, with captions as WebVTT.

    python tools/video.py FOLDER         # writes FOLDER/mrclab.webm and FOLDER/mrclab.vtt

The captions are in the pictures as well. Needs ffmpeg and Chromium (apt install ffmpeg chromium) and
Playwright (pip install playwright).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from live_pictures import opened, show, times_of

from mrclab.play.replays import SCRIPTS, replay_of
from mrclab.version import version

if TYPE_CHECKING:
    from playwright.sync_api import Page

FPS = 5
WIDTH, HEIGHT = 1280, 720
TITLE_S = 2.0
MOST_BYTES = 3_000_000


@dataclass(frozen=True)
class Caption:
    """A sentence that is shown from a time of the replay (us of virtual time) until the next caption."""

    from_us: float
    words: str


CAPTIONS: dict[str, Sequence[Caption]] = {
    "lab": (
        Caption(
            0,
            "Each transport has its own fabric. MRC sprays over all paths, RoCEv2 has one.",
        ),
        Caption(62, "A link dies silently: it drops every packet, and no switch notices."),
        Caption(
            80, "MRC's sender misses acknowledgements, retires the path and sends the lost packets again."
        ),
        Caption(150, "MRC goes on. RoCEv2 stands still, as it waits for its timeout."),
        Caption(242, "The link is repaired. RoCEv2 still waits for its timeout."),
        Caption(345, "RoCEv2 is whole 279 us after the cut. MRC was whole after 25 us."),
        Caption(430, "Probes were answered, and MRC uses the path again. All of it is simulated."),
    ),
    "wide": (
        Caption(0, "A larger fabric: eight planes, 256 paths between two hosts."),
        Caption(62, "All switches of one plane die at the same moment."),
        Caption(110, "MRC loses the packets that were on their way there. Seven planes are left."),
        Caption(202, "The plane is back."),
    ),
    "incast": (
        Caption(
            0,
            "Four hosts send to one. Discs are queues: they trim payloads rather than lose packets.",
        ),
        Caption(52, "A T1 dies in the middle of it. Each sender retires its paths for itself."),
        Caption(110, "No routing protocol took part in any of this."),
    ),
}
"""The captions by the name of the replay's script. Their times are the times of the script's acts."""
OVERLAY = """
(words) => {
  let box = document.getElementById("caption");
  if (!box) {
    box = document.createElement("div");
    box.id = "caption";
    box.style.cssText = "position:fixed;left:0;right:0;bottom:0;z-index:99;background:#000c;color:#fff;" +
      "font:600 26px system-ui,sans-serif;padding:14px 40px;text-align:center";
    document.body.append(box);
  }
  box.textContent = words;
  box.hidden = !words;
}
"""
CARD = """
(title) => {
  const card = document.createElement("div");
  card.id = "card";
  card.style.cssText = "position:fixed;inset:0;z-index:100;background:#0b3954;color:#fff;display:flex;" +
    "align-items:center;justify-content:center;font:600 54px system-ui,sans-serif";
  card.textContent = title;
  document.body.append(card);
}
"""


def caption_at(captions: Sequence[Caption], t_us: float) -> str:
    """Return the caption that is shown at a time of a replay, or "" before the first caption."""
    return next((caption.words for caption in reversed(captions) if caption.from_us <= t_us), "")


def stamp(t_s: float) -> str:
    """Return a time in the format of WebVTT."""
    return f"00:{int(t_s // 60):02d}:{t_s % 60:06.3f}"


def web_vtt(shown: Sequence[str]) -> str:
    """Return the captions as WebVTT. Consecutive pictures with the same caption become one cue."""
    cues, begin = [], 0
    for number in range(1, len(shown) + 1):
        if number == len(shown) or shown[number] != shown[begin]:
            if shown[begin]:
                cues.append(f"{stamp(begin / FPS)} --> {stamp(number / FPS)}\n{shown[begin]}\n")
            begin = number
    return "WEBVTT\n\n" + "\n".join(cues)


def pictures(page: Page, name: str, title: str, pace: int, folder: Path, shown: list[str]) -> None:
    """Write the pictures of one replay, and append the caption of each picture to ``shown``.

    The pictures are numbered after the earlier pictures. ``pace`` is the virtual time per second, in ns.
    """

    def picture(words: str) -> None:
        page.evaluate(OVERLAY, words)
        page.screenshot(path=folder / f"{len(shown):05d}.jpg", type="jpeg", quality=90)
        shown.append(words)

    page.evaluate(CARD, title)
    for _ in range(round(TITLE_S * FPS)):
        picture("")
    page.evaluate("() => document.getElementById('card').remove()")
    times = times_of(page)
    due = 0.0
    for number, t_s in enumerate(times):
        if t_s * 1e9 / pace + 1e-6 >= due:
            due += 1 / FPS
            show(page, number)
            picture(caption_at(CAPTIONS[name], t_s * 1e6))


def encode(folder: Path, out: Path) -> None:
    """Make a WebM of numbered pictures. Exit with ffmpeg's last line if it fails."""
    words = ["ffmpeg", "-y", "-loglevel", "error", "-framerate", str(FPS), "-i", str(folder / "%05d.jpg")]
    words += [
        "-c:v",
        "libvpx-vp9",
        "-crf",
        "40",
        "-b:v",
        "0",
        "-row-mt",
        "1",
        "-deadline",
        "good",
        "-cpu-used",
        "4",
    ]
    done = subprocess.run([*words, "-an", str(out)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"video: ffmpeg failed: {' '.join(done.stderr.split())[-200:]}")


def main(folder: Path) -> None:
    """Make the video."""
    missing = [program for program in ("ffmpeg", "chromium") if shutil.which(program) is None]
    if missing:
        raise SystemExit(f"video: no {' and no '.join(missing)} here: apt install {' '.join(missing)}")
    folder.mkdir(parents=True, exist_ok=True)
    shown: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for script in SCRIPTS:
            replay = Path(scratch) / f"{script.name}.html"
            replay.write_text(replay_of(script, version()), encoding="utf-8")
            with opened(replay, WIDTH, HEIGHT, "light") as page:
                pictures(page, script.name, script.title, script.pace, Path(scratch), shown)
        encode(Path(scratch), folder / "mrclab.webm")
    (folder / "mrclab.vtt").write_text(web_vtt(shown), encoding="utf-8", newline="\n")
    size = (folder / "mrclab.webm").stat().st_size
    print(f"{folder / 'mrclab.webm'}: {len(shown) / FPS:.0f} s, {size / 1e6:.2f} MB")
    if size > MOST_BYTES:
        raise SystemExit(f"video: larger than {MOST_BYTES / 1e6:g} MB: raise -crf")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
