"""The table of breaks (deliberate errors), read from the YAML files in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from tests.breaks.mutation import Sources, replace, set_value

FOLDER = Path(__file__).parent


class Break(BaseModel):
    """A bug that is put into the code on purpose.

    A break has exactly one of `make` (with `into`), `skip`, `never`, `always` and `value`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: str
    """The beginning of the text of a row in docs/mrc-conformance.md."""
    what: str
    """A description of the error."""
    name: Annotated[str, Field(alias="in")]
    """The function, method, class or constant to change; see `Sources.find`."""
    make: str | None = None
    """The expression or statement to replace; see `replace`."""
    into: str | None = None
    """The expression or statements that replace `make`."""
    skip: str | None = None
    """A statement that is not executed."""
    never: str | None = None
    """A condition that is never true."""
    always: str | None = None
    """A condition that is always true."""
    value: str | None = None
    """A new value of the constant or attribute; its name stands for the old value."""
    tests: Annotated[tuple[str, ...], Field(min_length=1)]
    """The names of the tests that must find the error."""

    @model_validator(mode="after")
    def _one_change(self) -> Self:
        given = [self.make, self.skip, self.never, self.always, self.value]
        if sum(one is not None for one in given) != 1 or (self.make is None) != (self.into is None):
            raise ValueError(f"{self.what}: a break needs one of make and into, skip, never, always, value")
        return self

    def apply(self, sources: Sources) -> tuple[Path, str]:
        """Return the path of the module to change, and its source with the error in it.

        Raise ValueError if the change does not fit the sources.
        """
        try:
            place = sources.find(self.name)
            source = place.path.read_text(encoding="utf-8")
            if self.value is not None:
                return place.path, set_value(source, place.name, self.value)
            changes = [
                (self.make, self.into),
                (self.skip, "pass"),
                (self.never, "False"),
                (self.always, "True"),
            ]
            ((old, new),) = [(old, new) for old, new in changes if old is not None and new is not None]
            return place.path, replace(source, place.name, old, new)
        except ValueError as error:
            raise ValueError(f"{error} [{self.row}: {self.what}]") from None


def breaks() -> list[Break]:
    """Return all breaks, in the order of the files' names."""
    return [
        Break.model_validate(entry)
        for path in sorted(FOLDER.glob("*.yaml"))
        for entry in yaml.safe_load(path.read_text(encoding="utf-8"))
    ]
