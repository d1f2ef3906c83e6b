"""Run the commands whose output a lab's page shows, and write their present output into the page.

A block of a lab's ``README.md`` below a comment ``<!-- output of PART: COMMANDS -->`` shows the output of the
last command, run in the folder PART: a ``solution`` or a skeleton (``start``). ``python -m
mrclab.labs.expected [N ...]`` writes all blocks of the labs N, or of all labs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mrclab.labs.catalogue import Lab, all_labs, find, folder_of
from mrclab.labs.student import solution, start
from mrclab.linux.errors import MrclabError

_BLOCK = re.compile(
    r"(?P<mark><!-- output of (?P<part>\w+): (?P<commands>[^\n]+) -->\n```text\n)(?P<shown>.*?)```\n", re.S
)
_MODULES = {"python": (), "mrclab": ("-m", "mrclab")}


@dataclass(frozen=True)
class Shown:
    """A block of a page: the commands, the part of the lab in whose folder they run, and their output."""

    lab: Lab
    part: str
    commands: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.lab.number}: {self.commands[-1]}"

    def made(self) -> str:
        """Run the commands in a new folder; return the last output. Raise MrclabError if a command fails."""
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "work"
            (solution if self.part == "solution" else start)(self.lab, folder)
            for command in self.commands:
                text = _printed(command.split(), folder)
        return text


def shown(lab: Lab) -> tuple[Shown, ...]:
    """Return the blocks that show an output in a lab's page."""
    return tuple(_shown(lab, match) for match in _BLOCK.finditer(_page(lab).read_text(encoding="utf-8")))


def _shown(lab: Lab, match: re.Match[str]) -> Shown:
    return Shown(lab, match["part"], tuple(match["commands"].split("; ")), match["shown"])


def _page(lab: Lab) -> Path:
    return folder_of(lab) / "README.md"


def _printed(words: Sequence[str], folder: Path) -> str:
    here = str(Path(__file__).parents[2])
    path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
    done = subprocess.run(
        [sys.executable, *_MODULES[words[0]], *words[1:]],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise MrclabError(f"'{' '.join(words)}' ended with {done.returncode}: {done.stderr.strip()}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def main(words: Sequence[str]) -> int:
    """Run the commands of the labs' pages again, and write their output into the pages. Return 0."""
    for lab in [find(word) for word in words] or all_labs():
        page = _page(lab)
        text = page.read_text(encoding="utf-8")
        for match in reversed(list(_BLOCK.finditer(text))):
            begin, end = match.span("shown")
            text = text[:begin] + _shown(lab, match).made() + text[end:]
        page.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
