"""What every job has: see ``jobs`` for those there are."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hosts.collectives.communicator import Communicator, Steps

Samples = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Times:
    """When a job begins, and when what it does begins to count."""

    start_ns: int
    measure_ns: int


class Job(Protocol):
    """A rank's part of a workload."""

    @property
    def problem(self) -> str | None:
        """What was wrong with the data, or None."""

    def prepare(self, comm: Communicator) -> None:
        """Exposes the memory."""

    def peers(self) -> set[int]:
        """The ranks that it talks to."""

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """Does it all."""

    def samples(self) -> Samples:
        """What it noted, by name."""


def columns(rows: list[tuple[int, ...]] | list[tuple[int, int, int, int]], names: tuple[str, ...]) -> Samples:
    """Rows of whole numbers as an array for each column."""
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: table[:, i] for i, name in enumerate(names)}


def as_int64(values: array[int]) -> npt.NDArray[np.int64]:
    """An array of the standard library as one of numpy."""
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, np.int64)
