"""The rows of docs/mrc-conformance.md, and the paths of the tests that they name."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.paths import ROOT

TABLE = ROOT / "docs" / "mrc-conformance.md"
FOLDERS = [ROOT / "tests" / folder for folder in ("hosts/mrc", "p4src", "topologies")]


@dataclass(frozen=True)
class Row:
    """A row of a table in docs/mrc-conformance.md."""

    item: str
    where: str
    tested_by: str

    @property
    def tests(self) -> tuple[str, ...]:
        """The names of the tests in `tested_by`."""
        return tuple(re.findall(r"`(test_\w+)`", self.tested_by))


def rows() -> list[Row]:
    """Return all rows of the tables in docs/mrc-conformance.md, in order."""
    text = TABLE.read_text(encoding="utf-8")
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| Item")
    ]
    return [Row(*three) for three in cells]


def nodes() -> dict[str, str]:
    """Map the name of each test of the endpoint and the switch program to its path in pytest's notation."""
    return {
        name: f"{path.relative_to(ROOT).as_posix()}::{name}"
        for folder in FOLDERS
        for path in sorted(folder.rglob("test_*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
