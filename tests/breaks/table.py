"""The table of breaks, read from the YAML files in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from tests.support.replacement import replace_once

FOLDER = Path(__file__).parent


class Break(BaseModel):
    """A deliberate error in the sources."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    """The beginning of the text of a row in docs/mrc-conformance.md."""
    what: str
    """A description of the error."""
    file: str
    """The source file to change, relative to the root of the project."""
    old: str
    """The text to replace. It occurs exactly once in the file."""
    new: str
    """The text that replaces `old`."""
    tests: Annotated[tuple[str, ...], Field(min_length=1)]
    """The names of the tests that must find the error."""

    def apply(self, source: str) -> str:
        """Return the source with the error in it. Raise ValueError unless `old` occurs there exactly once."""
        try:
            return replace_once(source, self.old, self.new)
        except ValueError as error:
            raise ValueError(f"{self.file}: {error} [{self.row}: {self.what}]") from None


def breaks() -> list[Break]:
    """Return all breaks, in the order of the files' names."""
    return [
        Break.model_validate(entry)
        for path in sorted(FOLDER.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
