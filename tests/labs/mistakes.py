"""Mistakes of students: a solution with some of its text replaced, as a lab's ``mistakes.yaml`` lists it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from mrclab.labs.p4 import COMPILED
from tests.support.replacement import replace_once


@dataclass(frozen=True)
class Mistake:
    """One wrong solution."""

    lab: Path
    name: str
    hint: str
    """Words of the hint that the check has to give."""
    variant: str | None
    """Its compiled P4 program, as a letter of the lab's variants."""
    changes: dict[str, list[dict[str, str]]]
    """Texts to replace, `old` and `new`, by file; in hexadecimal digits if the file is no text."""

    def write(self, folder: Path) -> None:
        """Write the changed files into a folder. Raise ValueError if a text to replace is not there once."""
        for name, changes in self.changes.items():
            content = (self.lab / "solution" / name).read_bytes()
            is_text = not name.endswith(".pcap")
            text = content.decode() if is_text else content.hex()
            for change in changes:
                text = replace_once(text, **change)
            (folder / name).write_bytes(text.encode() if is_text else bytes.fromhex(text))
        if self.variant is not None:
            shutil.copy(self.lab / "start" / "variants" / f"{self.variant}.json", folder / COMPILED)


def mistakes_of(lab: Path) -> list[Mistake]:
    """Return the mistakes of the lab in this folder."""
    listed = yaml.safe_load((lab / "mistakes.yaml").read_text(encoding="utf-8"))
    return [
        Mistake(lab, name, entry.pop("hint"), entry.pop("variant", None), entry)
        for name, entry in listed.items()
    ]
