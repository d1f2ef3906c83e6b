"""Mistakes of students: solutions with replaced text, as a lab's ``mistakes.yaml`` lists them."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import yaml

from mrclab.labs.p4 import COMPILED


@dataclass(frozen=True)
class Mistake:
    """A wrong solution of a lab."""

    lab: Path
    name: str
    hint: str
    """Words that the check's hint must have."""
    variant: str | None
    """The letter of the compiled P4 program, among the lab's variants."""
    changes: dict[str, list[dict[str, str]]]
    """The texts `old` and `new` by file, in hexadecimal digits if the file is no text."""

    def write(self, folder: Path) -> None:
        """Write the changed files into a folder. Raise ValueError unless each `old` occurs exactly once."""
        for name, changes in self.changes.items():
            content = (self.lab / "solution" / name).read_bytes()
            is_text = not name.endswith(".pcap")
            text = content.decode() if is_text else content.hex()
            for change in changes:
                text = _replace_once(text, **change)
            (folder / name).write_bytes(text.encode() if is_text else bytes.fromhex(text))
        if self.variant is not None:
            shutil.copy(self.lab / "start" / "variants" / f"{self.variant}.json", folder / COMPILED)


def _replace_once(text: str, old: str, new: str) -> str:
    count = text.count(old)
    if count != 1:
        raise ValueError(f"{old!r} occurs {count} times")
    return text.replace(old, new)


def mistakes_of(lab: Path) -> list[Mistake]:
    """Return the mistakes of the lab in this folder."""
    listed = yaml.safe_load((lab / "mistakes.yaml").read_text(encoding="utf-8"))
    return [
        Mistake(lab, name, entry.pop("hint"), entry.pop("variant", None), entry)
        for name, entry in listed.items()
    ]
