"""Parse the file of a sweep: a model or scenario, a grid of parameters, and seeds. Return its points."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from mrclab.linux.errors import InputError
from mrclab.topologies.yaml_lines import read_yaml
from mrclab.topologies.yaml_model import WholeNumber, YamlModel, validated, wrong

Plain = str | int | float | bool
MAX_POINTS = 100_000


class SweepFile(YamlModel):
    """The content of a sweep's file."""

    what: ClassVar[str] = "the sweep"

    name: str
    model: Literal["fabric", "shares", "failures"] | None = Field(
        default=None, description="a model of `mrclab scale`: `fabric`, `shares` or `failures`"
    )
    scenario: str | None = Field(default=None, description="or a scenario: a shipped name or a file")
    target: str | None = Field(default=None, description="of the scenario, as `mrclab run --target`")
    topology: str | None = Field(default=None, description="of the scenario, as `mrclab run --topology`")
    fixed: dict[str, Plain] = Field(default={}, description="parameters that all points share")
    grid: dict[str, list[Plain]] = Field(description="parameters and the values that each takes")
    seeds: Annotated[int, WholeNumber(1, 10_000)] | list[Annotated[int, WholeNumber(0)]] = Field(
        default=1, description="how many seeds (1, 2, ...), or a list of them"
    )
    metrics: list[str] = Field(default=[], description="those to show; all are kept")

    @model_validator(mode="after")
    def _check(self) -> SweepFile:
        if (self.model is None) == (self.scenario is None):
            raise wrong("needs either 'model' or 'scenario'")
        if self.model is not None and (self.target or self.topology):
            raise wrong("a model has no target and no topology")
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name[0] == ".":
            raise wrong("must be a word of letters, digits, '-' and '_'", "name")
        for key, values in self.grid.items():
            if not values:
                raise wrong("is empty", "grid", key)
            if key in self.fixed:
                raise wrong(f"'{key}' is in fixed, too", "grid", key)
            if len({repr(value) for value in values}) < len(values):
                raise wrong("has a value twice", "grid", key)
        if isinstance(self.seeds, list) and (not self.seeds or len(set(self.seeds)) < len(self.seeds)):
            raise wrong("must be different numbers, at least one", "seeds")
        return self


@dataclass(frozen=True, slots=True)
class Point:
    """One point of the grid: its index, all its parameters, and its seed."""

    place: int
    params: Mapping[str, Plain]
    seed: int


def parse_sweep(text: str, where: str) -> SweepFile:
    """Return the sweep in a YAML text. Raise InputError, with file, line and key, if it is not valid."""
    return validated(SweepFile, read_yaml(text, where))


def points_of(sweep: SweepFile) -> tuple[Point, ...]:
    """Return all points, in the order of nested loops: the first key outside, the seed inside.

    Raise InputError if there are too many points.
    """
    seeds = range(1, sweep.seeds + 1) if isinstance(sweep.seeds, int) else sweep.seeds
    number = len(seeds)
    for values in sweep.grid.values():
        number *= len(values)
    if number > MAX_POINTS:
        raise InputError(f"{sweep.name}: {number:,} points are more than {MAX_POINTS:,}")
    combinations = itertools.product(*sweep.grid.values())
    found: list[tuple[dict[str, Any], int]] = [
        ({**sweep.fixed, **dict(zip(sweep.grid, values, strict=True))}, seed)
        for values in combinations
        for seed in seeds
    ]
    return tuple(Point(place, params, seed) for place, (params, seed) in enumerate(found))
