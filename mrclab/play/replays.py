"""Recorded runs of the simulator for the docs. They follow a script and are the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from mrclab.live.recording import replay_page, static
from mrclab.play.scene import Scene
from mrclab.play.session import Play
from mrclab.topologies import load_fabric

FRAMES_PER_S = 10


@dataclass(frozen=True, slots=True)
class Script:
    """One replay. Each act is (time in us, action): "cut", "kill a spine", "kill a plane" or "restore"."""

    name: str
    title: str
    notes: str
    scene: Scene
    pace: int
    until_us: int
    acts: Sequence[tuple[int, str]]


SCRIPTS = (
    Script(
        "lab",
        "A silent cut: MRC and RoCEv2",
        "A link that RoCEv2 uses is cut silently, and restored 180 us later. MRC loses some "
        "packets, retires one path "
        "and is whole after some round trips. RoCEv2 stands still until its timeout after the repair.",
        Scene("lab"),
        20_000,
        520,
        ((60, "cut"), (240, "restore")),
    ),
    Script(
        "wide",
        "A plane of eight dies",
        "256 paths in eight planes. All switches of the plane that RoCEv2 uses die: MRC loses the "
        "packets that were on "
        "their way there, and sends on over seven planes.",
        Scene("wide"),
        20_000,
        260,
        ((60, "kill a plane"), (200, "restore")),
    ),
    Script(
        "incast",
        "An incast, and a spine that dies in it",
        "Four hosts send to one. Discs at switches are queues; they trim payloads rather than lose "
        "packets. Then a spine "
        "dies: each sender retires its paths for itself.",
        Scene("lab", ("mrc",), "incast", 60_000_000_000),
        10_000,
        150,
        ((50, "kill a spine"), (120, "restore")),
    ),
)


TRAINING = "static/training.json"
"""The recording of a training in virtual time, made by tools/training_replay.py."""


def training_page() -> str:
    """Return an HTML page that plays the recorded training."""
    data = (files("mrclab.play") / TRAINING).read_text(encoding="utf-8")
    page = static("training.html")
    for name in ("live.css", "training.css"):
        page = page.replace(
            f'<link rel="stylesheet" href="static/{name}">', f"<style>\n{static(name)}\n</style>"
        )
    for name in ("format.js", "training.js"):
        page = page.replace(f'<script src="static/{name}"></script>', f"<script>\n{static(name)}\n</script>")
    return page.replace("<script>", f"<script>window.RECORDING = {data.strip()};</script>\n<script>", 1)


def frames_of(play: Play, script: Script) -> Iterator[dict[str, Any]]:
    """Simulate a script and yield its page updates."""
    acts = list(script.acts)
    step_ns = script.pace // FRAMES_PER_S
    play.set_pace(script.pace)
    while play.now_ns < 1000 * script.until_us:
        end_ns = play.now_ns + step_ns
        if acts and 1000 * acts[0][0] <= end_ns:
            t_us, what = acts.pop(0)
            play.advance(1000 * t_us)
            _act(play, what)
        play.advance(end_ns)
        yield play.frame()


def _act(play: Play, what: str) -> None:
    if what == "restore":
        play.undo(None)
        return
    link = play.busiest("rocev2" if "rocev2" in play.lanes else "mrc")
    assert link is not None
    fault = {
        "cut": {"kind": "blackhole", "where": link},
        "kill a spine": {"kind": "switch-death", "where": link.split(":")[1]},
        "kill a plane": {"kind": "plane-death", "where": link.split("-")[0]},
    }[what]
    play.make_fault(fault)


def replay_of(script: Script, version: str) -> str:
    """Return the replay of a script as one HTML page."""
    play = Play(script.scene, load_fabric(script.scene.fabric))
    about = {**play.about(version), "title": script.title, "notes": script.notes}
    frames = list(frames_of(play, script))
    packets = {
        f"{card['number']}/{name}": play.packets(card["number"], name)
        for card in frames[-1]["cards"]
        for name in card["results"]
    }
    return replay_page(about, frames, packets)
