"""The labs that are installed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import yaml
from pydantic import ValidationError

from mrclab.labs.model import Lab, LabSpec
from mrclab.linux.errors import InputError

ROOT = Path(__file__).parent
INSTRUCTORS = "MRCLAB_LABS"
_FOLDER = re.compile(r"(\d\d)-([a-z0-9-]+)")


def all_labs(root: Path = ROOT) -> tuple[Lab, ...]:
    """Return all labs, by number. Raise InputError for a ``lab.yaml`` that cannot be used."""
    found = []
    for path in sorted(root.iterdir()):
        match = _FOLDER.fullmatch(path.name)
        if match and (path / "lab.yaml").is_file():
            found.append(Lab(int(match[1]), match[2], _spec(path / "lab.yaml")))
    return tuple(found)


def _spec(path: Path) -> LabSpec:
    try:
        return LabSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, ValidationError) as error:
        raise InputError(str(error), where=str(path)) from None


def find(word: str, labs: tuple[Lab, ...] | None = None) -> Lab:
    """Return the lab that a word names (``4``, ``spray``). Raise InputError, with all there are."""
    labs = all_labs() if labs is None else labs
    for lab in labs:
        if lab.called(word):
            return lab
    known = ", ".join(f"{lab.number} ({lab.name})" for lab in labs)
    raise InputError(f"no lab '{word}': there are {known}")


def part_of(lab: Lab, part: str, root: Path = ROOT) -> Path:
    """Return a folder or file of a lab that only instructors have, such as ``solution``.

    It lies next to the lab in a copy of the source, or in the folder ``labs`` that MRCLAB_LABS names. Raise
    InputError if it is in neither.
    """
    for labs in (os.environ.get(INSTRUCTORS), root):
        if labs and (Path(labs) / lab.folder / part).exists():
            return Path(labs) / lab.folder / part
    raise InputError(
        f"there is no {part} of lab {lab.number} here: only instructors have it. {INSTRUCTORS} names "
        "the folder labs/ of a copy of the source"
    )


def folder_of(lab: Lab) -> Path:
    """Return the folder of an installed lab."""
    return ROOT / lab.folder
