"""Figures of the labs as SVG, drawn from the fabric's model, the simulated switches and a simulated run.

python tools/lab_figures.py          # writes all of them into the folders of the labs
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from mrclab.labs.looking import way_of
from mrclab.topologies import Fabric, load_fabric

ROOT = Path(__file__).resolve().parent.parent
INK, GREY, PALE, BLUE, RED, GREEN = "#1b1f24", "#5d6773", "#eef1f4", "#0072b2", "#d55e00", "#009e73"
RUN = ("link-kill", "--target", "sim", "--topology", "tiny", "--trials", "1", "--set", "measure.capture=true")
"""The run that the figure of a recovery shows."""
BEFORE_US, AFTER_US = 250.0, 650.0


def text(x: float, y: float, words: str, fill: str = INK, **more: str) -> str:
    """Return a text element. ``more`` are further attributes, with _ in place of -."""
    extra = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in more.items())
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}"{extra}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, stroke: str, width: float = 1.6, dash: str = "") -> str:
    """Return a line element."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" stroke="{stroke}" stroke-width="{width:g}"'
        f'{dashes} fill="none"/>'
    )


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    """Return a rectangle with a border."""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{fill}" stroke="{GREY}"/>'


def drawing(width: int, height: int, label: str, parts: Iterable[str]) -> str:
    """Return an SVG file with a white background. ``label`` is for screen readers."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
            f'aria-label="{escape(label)}" font-family="system-ui, sans-serif" font-size="15">',
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def fabric_figure() -> str:
    """Return a drawing of the fabric ``tiny``: its planes side by side, T1s above T0s, and the hosts."""
    fabric = load_fabric("tiny")
    at = places(fabric)
    parts = []
    for plane in range(fabric.planes):
        left = 30 + 350 * plane
        parts.append(f'<rect x="{left}" y="10" width="330" height="200" rx="8" fill="{PALE}"/>')
        parts.append(text(left + 12, 32, f"plane {plane}", GREY))
    for link in fabric.links:
        (x1, y1), (x2, y2) = at[link.a.node], at[link.b.node]
        parts.append(line(x1, y1, x2, y2, (BLUE, RED)[link.plane] if link.kind == "host" else GREY))
    for name, (x, y) in at.items():
        parts.append(box(x - 42, y - 16, 84, 32, "#fff"))
        parts.append(text(x, y + 5, name, text_anchor="middle", font_family="monospace"))
    parts.append(
        text(30, 350, "A host has a port in each plane. In each plane, every T0 is linked to every T1.", GREY)
    )
    return drawing(
        740, 365, "The fabric tiny: two planes, each with two T1s and two T0s, and four hosts", parts
    )


def places(fabric: Fabric) -> dict[str, tuple[float, float]]:
    """Return the middle of each node's box, by name."""
    at = {}
    nodes = dict.fromkeys(port.node for link in fabric.links for port in (link.a, link.b))
    for name in nodes:
        if name.startswith("h"):
            at[name] = (100 + 180.0 * int(name[1:]), 300.0)
        else:
            plane, tier, number = name.split("-")
            at[name] = (30 + 350.0 * int(plane[1:]) + 95 + 140 * int(number), 65.0 if tier == "t1" else 175.0)
    return at


def shift_figure() -> str:
    """Return a drawing of a packet from h0 to h2: its list of uSIDs after each switch on the way."""
    path = next(p for p in load_fabric("tiny").paths("h0", "h2") if "p0-t1-0" in p.nodes)
    frame = bytes(12) + b"\x86\xdd\x60" + bytes(6) + b"\x40" + bytes(16) + path.outer_dst.packed + bytes(8)
    steps = way_of(frame, "h0", 0).steps
    notes = [f"{path.nodes[1]}'s uSID is first"]
    notes += [f"shifted: {node}'s is first" for node in path.nodes[2:-1]] + ["the port of h2"]
    parts = []
    for row, (step, note) in enumerate(zip(steps, notes, strict=True)):
        top = 12 + 50 * row
        groups = step.destination.exploded.split(":")
        parts.append(text(10, top + 23, f"from {step.node}" if row == 0 else f"behind {step.node}"))
        parts.append(box(140, top, 104, 34, PALE))
        parts.append(text(192, top + 23, "fcbb:bb00", text_anchor="middle", font_family="monospace"))
        for place, group in enumerate(groups[2:6]):
            left = 244 + 58 * place
            parts.append(box(left, top, 58, 34, "#fff" if place else "#cfe6f5"))
            words = f"{int(group, 16):x}"
            parts.append(text(left + 29, top + 23, words, text_anchor="middle", font_family="monospace"))
            if place and row < len(steps) - 1:
                parts.append(line(left + 29, top + 35, left - 29, top + 49, BLUE))
        parts.append(text(490, top + 23, note, GREY))
    label = "A list of uSIDs: each switch removes its own and shifts the rest to the front"
    return drawing(720, 10 + 50 * len(steps), label, parts)


def recovery_figure() -> str:
    """Return a drawing of one recovery in virtual time: each packet around a cut, by path and time."""
    from mrclab.results import load

    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "mrclab", "run", *RUN, "--out", "run"]
        subprocess.run(command, cwd=scratch, check=True, capture_output=True)
        run = load(Path(scratch) / "run")
        return _recovery(run.trials.iloc[0], run.packets)


def _recovery(trial: Any, packets: Any) -> str:
    packets = packets.assign(t_us=(packets["t_ns"] - trial["fault_ns"]) / 1000)
    data = packets[packets["is_data"] & packets["t_us"].between(-BEFORE_US, AFTER_US)]
    sender = data[data["outgoing"]]["host"].mode()[0]
    sent = data[data["outgoing"] & (data["host"] == sender)]
    arrived = packets[packets["is_data"] & ~packets["outgoing"] & (packets["host"] != sender)]
    there = set(zip(arrived["psn"], arrived["ev"], strict=True))
    paths = {path.ev: path for path in load_fabric("tiny").paths(sender, "h2")}
    rows = {ev: row for row, ev in enumerate(sorted(paths))}

    def across(t_us: float) -> float:
        return round(150 + (t_us + BEFORE_US) / (BEFORE_US + AFTER_US) * 540, 1)

    parts = []
    for ev, row in rows.items():
        y = 70 + 34 * row
        parts.append(
            text(140, y + 5, f"over {paths[ev].nodes[2]}", text_anchor="end", font_family="monospace")
        )
        parts.append(line(150, y, 690, y, PALE, 8))
    times = [("cut", 0.0), *((name, trial[f"{name}_us"]) for name in ("detected", "recovered"))]
    for name, t_us in times:
        colour = RED if name == "cut" else GREY
        parts.append(line(across(t_us), 40, across(t_us), 196, colour, 1.6, "" if name == "cut" else "4 3"))
        parts.append(text(across(t_us), 32, name, colour, text_anchor="middle"))
        parts.append(text(across(t_us), 214, f"{t_us:.0f} us", colour, text_anchor="middle"))
    for packet in sent.itertuples():
        if packet.ev not in rows:
            continue
        x, y = across(packet.t_us), 70 + 34 * rows[packet.ev]
        if (packet.psn, packet.ev) not in there:
            parts.append(
                line(x - 4, y - 8, x + 4, y + 8, RED, 2.4) + line(x + 4, y - 8, x - 4, y + 8, RED, 2.4)
            )
        else:
            width, colour = (5.0, GREEN) if packet.rtx else (2.0, BLUE)
            parts.append(
                f'<rect x="{x - width / 2:g}" y="{y - 9}" width="{width:g}" height="18" fill="{colour}"/>'
            )
    legend = (("sent", BLUE), ("lost", RED), ("sent again", GREEN))
    parts += [text(150 + 110 * n, 244, words, colour) for n, (words, colour) in enumerate(legend)]
    label = (
        "Packets of one stream by path and time around a cut: lost ones on one path are sent again on others"
    )
    return drawing(720, 256, label, parts)


def writes_figure() -> str:
    """Return a drawing of the writes in lab 9's example, from post to completion."""
    page = (ROOT / "labs/09-program/README.md").read_text(encoding="utf-8")
    steps = page.split("python watch.py -->\n```text\n")[1].split("\n```")[0].splitlines()
    posted: dict[tuple[int, int], tuple[int, int]] = {}
    lanes: dict[int, list[int]] = {}
    """For each queue pair, the message in each lane (row) of the drawing."""
    parts = []
    for now, step in enumerate(steps[:-1]):
        what, _, pair, _, message, *end = step.split()
        key, mine = (int(pair), int(message)), lanes.setdefault(int(pair), [])
        if what == "post":
            lane = mine.index(-1) if -1 in mine else len(mine)
            mine[lane : lane + 1] = [key[1]]
            posted[key] = now, lane
        else:
            begin, lane = posted[key]
            mine[lane] = -1
            y = 16 + 92 * key[0] + 26 * lane
            parts += _write(str(key[1]), 120 + 20 * begin, y, 20 * (now - begin), " ".join(end))
    for pair in lanes:
        parts.append(text(10, 50 + 92 * pair, f"queue pair {pair}"))
        parts.append(line(10, 100 + 92 * pair, 710, 100 + 92 * pair, PALE))
    legend = (("complete", BLUE), ("retries exceeded", RED), ("flushed", GREY))
    parts += [text(120 + 150 * n, 304, words, colour) for n, (words, colour) in enumerate(legend)]
    label = "Writes over three queue pairs in time: one fails, and its two messages go again over another one"
    return drawing(720, 316, label, parts)


def _write(message: str, x: int, y: int, width: int, outcome: str) -> list[str]:
    colour = {"ok": BLUE, "flushed": GREY}.get(outcome, RED)
    bar = f'<rect x="{x}" y="{y}" width="{width - 2}" height="21" rx="3" fill="{colour}"/>'
    return [bar, text(x + 5, y + 15, message, "#fff", font_size="13")]


FIGURES: dict[str, Callable[[], str]] = {
    "labs/01-look-around/fabric.svg": fabric_figure,
    "labs/01-look-around/usid-shift.svg": shift_figure,
    "labs/06-kill-links/recovery.svg": recovery_figure,
    "labs/09-program/writes.svg": writes_figure,
}


def main() -> None:
    """Write all figures."""
    for path, figure in FIGURES.items():
        (ROOT / path).write_text(figure(), encoding="utf-8", newline="\n")
        print(path)


if __name__ == "__main__":
    main()
