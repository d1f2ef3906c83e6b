"""The breaks, as the YAML files beside this module list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field

from tests.support.replacement import replace_once

FOLDER = Path(__file__).parent


class Break(BaseModel):
    """One error to make on purpose."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    """How the row of docs/mrc-conformance.md begins."""
    what: str
    """What the endpoint does wrong."""
    file: str
    """Source to change, from the root of the project."""
    old: str
    """Text that occurs there exactly once."""
    new: str
    """Text to put in its place."""
    tests: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of tests; each of them must find the error."""

    def apply(self, source: str) -> str:
        """Return the source with the error in it. Raises ValueError where `old` is not there once."""
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
