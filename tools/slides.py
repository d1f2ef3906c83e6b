"""Make the slides of the labs: one HTML file for each lab, with all pictures, so that it needs no network.

    python tools/slides.py FOLDER        # writes FOLDER/NN-name.html for each lab with a slides.md

``slides.md`` is Markdown. A line ``---`` begins a new slide, and a line ``???`` begins the notes for the
speaker. Figures of the lab's folder are put into the file. Keys: arrows, space, Home and End change the
slide, n shows the notes. The address can end with a slide's number (``#3``). Printing gives a page for each
slide.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

import markdown

ROOT = Path(__file__).resolve().parent.parent
_FIGURE = re.compile(r'<img alt="([^"]*)" src="([\w./-]+\.svg)" ?/?>')
_EXTENSIONS = ["tables", "fenced_code", "attr_list", "sane_lists"]

STYLE = """
:root { color-scheme: light; --ink: #1b1f24; --accent: #0072b2; --grey: #5d6773; }
* { box-sizing: border-box; }
html, body { margin: 0; height: 100%; background: #fff; color: var(--ink);
  font-family: system-ui, sans-serif; }
section { display: none; width: 100vw; height: 100vh; padding: 5vh 6vw 9vh; flex-direction: column;
  justify-content: center; font-size: min(2.5vw, 4.2vh); line-height: 1.4; overflow: hidden; }
section.now { display: flex; }
h1 { font-size: 2em; margin: 0 0 .4em; color: var(--accent); line-height: 1.15; }
h2 { font-size: 1.45em; margin: 0 0 .6em; color: var(--accent); line-height: 1.2; }
p, ul, ol, table, pre { margin: 0 0 .6em; }
li { margin-bottom: .35em; }
pre { font-size: .75em; background: #eef1f4; padding: .7em 1em; border-radius: .4em; overflow: hidden; }
code { font-family: ui-monospace, monospace; background: #eef1f4; padding: 0 .2em; border-radius: .2em; }
pre code { padding: 0; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: .25em .9em .25em 0; border-bottom: 1px solid #c8d0d8; }
svg { max-width: 100%; max-height: 62vh; align-self: center; width: 100%; }
aside { display: none; font-size: .7em; color: var(--grey); border-top: 1px solid #c8d0d8;
  padding-top: .5em; }
body.notes aside { display: block; }
footer { position: fixed; right: 2vw; bottom: 2vh; font-size: min(1.4vw, 2.4vh); color: var(--grey); }
@page { size: 280mm 157.5mm; margin: 0; }
@media print {
  section { display: flex; width: 280mm; height: 157.4mm; page-break-after: always; font-size: 17pt; }
  footer { display: none; }
}
"""
SCRIPT = """
const slides = [...document.querySelectorAll("section")];
const count = document.querySelector("footer");
let now = 0;
function show(number) {
  now = Math.min(Math.max(number, 0), slides.length - 1);
  slides.forEach((slide, n) => slide.classList.toggle("now", n === now));
  count.textContent = `${now + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${now + 1}`);
}
const STEPS = { ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1 };
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key in STEPS) { event.preventDefault(); show(now + STEPS[event.key]); }
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(slides.length - 1);
  else if (event.key === "n") document.body.classList.toggle("notes");
});
addEventListener("click", (event) => {
  if (!event.target.closest("a")) show(now + (event.clientX < innerWidth / 4 ? -1 : 1));
});
addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1 || 0));
show(Number(location.hash.slice(1)) - 1 || 0);
"""


def slide(text: str, folder: Path) -> str:
    """Return one slide as HTML, with figures from ``folder``."""
    shown, _, notes = text.partition("\n???\n")
    body = _html(shown, folder)
    aside = f"<aside>{_html(notes, folder)}</aside>" if notes.strip() else ""
    return f"<section>{body}{aside}</section>"


def _html(text: str, folder: Path) -> str:
    def figure(match: re.Match[str]) -> str:
        return (folder / match[2]).read_text(encoding="utf-8")

    return _FIGURE.sub(figure, markdown.markdown(text.strip(), extensions=_EXTENSIONS))


def split(text: str) -> list[str]:
    """Return the slides of a text. A line of three hyphens outside of code begins a new slide."""
    slides, code = [""], False
    for line in text.splitlines():
        code ^= line.startswith("```")
        if line == "---" and not code:
            slides.append("")
        else:
            slides[-1] += line + "\n"
    return slides


def deck(source: Path) -> str:
    """Return all slides of a ``slides.md`` as an HTML page that needs no other files."""
    text = source.read_text(encoding="utf-8")
    slides = [slide(one, source.parent) for one in split(text)]
    title = text.partition("\n")[0].lstrip("# ")
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{STYLE}</style>\n<body>\n"
        + "\n".join(slides)
        + f"\n<footer></footer>\n<script>{SCRIPT}</script>\n"
    )


def decks() -> dict[str, str]:
    """Return the HTML page of each lab that has slides, by the name of the lab's folder."""
    sources = sorted((ROOT / "labs").glob("[0-9]*/slides.md"))
    return {source.parent.name: deck(source) for source in sources}


def main(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in decks().items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8", newline="\n")
        print(folder / f"{name}.html")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
