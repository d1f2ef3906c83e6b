"""The installed labs, and the data types of a lab and of a check's outcome."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mrclab.linux.errors import InputError

SCHEMA = 1
"""The version of the format of ``result.json`` in a hand-in."""


class LabSpec(BaseModel):
    """The file ``lab.yaml`` of a lab."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str = Field(description="what it is about, in a few words")
    aim: str = Field(description="what a student can do afterwards, in one line")
    minutes: int = Field(gt=0, description="how long it takes most students")
    files: tuple[str, ...] = Field(description="what the student works on: all of them are handed in")
    modules: tuple[str, ...] = Field(
        default=(), description="Python modules that it needs beyond mrclab's own"
    )
    programs: tuple[str, ...] = Field(default=(), description="programs on the PATH that help, not demanded")
    topology: str | None = Field(default=None, description="the fabric that `start` brings up")
    optional_fabric: bool = Field(default=False, description="the lab can be done without that fabric, too")
    next_steps: tuple[str, ...] = Field(default=(), description="commands to type first, in the lab's folder")
    check_limit_s: float = Field(default=120.0, gt=0, description="the longest that one check may take")


@dataclass(frozen=True)
class Lab:
    """A lab: its number, its short name, and the content of its ``lab.yaml``."""

    number: int
    name: str
    spec: LabSpec

    @property
    def folder(self) -> str:
        """The lab's folder in the folder ``labs``, such as ``04-spray``."""
        return f"{self.number:02d}-{self.name}"

    @property
    def student_folder(self) -> str:
        """The name of the student's folder, unless the student gives another name."""
        return f"lab-{self.folder}"

    def called(self, word: str) -> bool:
        """Return True if a word means this lab: ``4``, ``04``, ``spray`` or ``04-spray``."""
        return word.casefold() in (str(self.number), f"{self.number:02d}", self.name, self.folder)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check.

    ``hint`` is empty if the check passed. ``tried`` is false if the check did not run, because an earlier
    check failed. ``measured`` has the results, by name, of a check that is a part of a score
    (`mrclab.labs.judge`).
    """

    check: str
    passed: bool
    hint: str = ""
    tried: bool = True
    measured: Mapping[str, float] = field(default_factory=dict)


def passed(outcomes: Sequence[Outcome]) -> bool:
    """Return True if there is at least one outcome and all checks passed."""
    return bool(outcomes) and all(outcome.passed for outcome in outcomes)


def document(
    lab: Lab, outcomes: Sequence[Outcome], files: dict[str, str], when: str, version: str, student: str = ""
) -> dict[str, Any]:
    """Return the result of a hand-in in JSON's types.

    ``files`` maps names to the SHA-256 of their content. ``when`` is a time in ISO 8601. ``student`` is the
    number from which the variant was drawn, or "" if there is no variant.
    """
    return {
        "schema": SCHEMA,
        "lab": lab.number,
        "name": lab.name,
        "mrclab": version,
        "time": when,
        "student": student,
        "passed": passed(outcomes),
        "checks_passed": sum(outcome.passed for outcome in outcomes),
        "checks": [asdict(outcome) for outcome in outcomes],
        "files": files,
    }


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
    """Return the lab that a word names (``4``, ``spray``), or raise InputError, which lists all labs."""
    labs = all_labs() if labs is None else labs
    for lab in labs:
        if lab.called(word):
            return lab
    known = ", ".join(f"{lab.number} ({lab.name})" for lab in labs)
    raise InputError(f"no lab '{word}': there are {known}")


def part_of(lab: Lab, part: str, root: Path = ROOT) -> Path:
    """Return a part of a lab that students do not get: a folder or file, such as ``solution``.

    In a copy of the source, the part is in the lab's folder. Otherwise the part is in the folder that
    MRCLAB_LABS names. Raise InputError if neither folder has the part.
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
