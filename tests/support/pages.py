"""The code blocks of README and docs. A comment above each block says how a test runs the block.

The line above a block of commands or Python has one of these comments:

* ``run``: commands that need neither root nor a fabric;
* ``run as root``: commands on the fabric ``lab``; ``run as root, without a fabric``: programs that bring up a
  fabric themselves, and commands that work only without a fabric;
* ``planned: REASON``: commands that a test runs with ``--dry-run``;
* ``not run: REASON``;
* ``file NAME``: the content of a file that other blocks use.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.paths import ROOT

PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))
RUN, ROOT_RUN, ALONE = "run", "run as root", "run as root, without a fabric"
PLANNED, NOT_RUN, FILE = "planned: ", "not run: ", "file "
NO_COMMANDS = ("text", "json", "mermaid", "toml")
_MARK = re.compile(r"<!-- (.*) -->")
_INDENTED = re.compile(r" {4}(mrclab|python3?|ip netns|tshark|make|simple_switch_\w+) \S")
_INLINE = re.compile(r"`(mrclab [a-z][^`]*)`")
_PLACEHOLDER = re.compile(r"[A-Z]{2,}|\||\.\.\.|\b[A-Z]\b")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> tuple[tuple[str, ...], ...]:
        """The words of each `mrclab` command in the block."""
        return () if self.language else tuple(_commands(self.text))


def blocks() -> tuple[Block, ...]:
    """Return the fenced blocks of all pages, in order."""
    return tuple(block for path in PAGES for block in _blocks(path.name, path.read_text(encoding="utf-8")))


def _blocks(page: str, text: str) -> Iterator[Block]:
    lines = text.splitlines()
    begin: int | None = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begin is None:
            begin = number
            continue
        mark = _MARK.fullmatch(lines[begin - 1])
        inside = "\n".join(lines[begin + 1 : number]) + "\n"
        yield Block(page, begin + 1, lines[begin][3:].strip(), mark[1] if mark else "", inside)
        begin = None


def _commands(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set(";&|<>"):
                if command[:1] == ["mrclab"]:
                    yield tuple(command[1:])
                command = []
            else:
                command.append(word)


def named_in_text() -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return each complete command that the text of a page mentions, with the page."""
    found = []
    for path in PAGES:
        for command in _INLINE.findall(path.read_text(encoding="utf-8")):
            if not _PLACEHOLDER.search(command):
                found.append((path.name, tuple(shlex.split(command)[1:])))
    return tuple(dict.fromkeys(found))


def indented_commands() -> tuple[str, ...]:
    """Return commands outside of fenced blocks. They are errors, because no test would run them."""
    found = []
    for path in PAGES:
        outside = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.S | re.M)
        found += [f"{path.name}: {line}" for line in outside.splitlines() if _INDENTED.match(line)]
    return tuple(found)
