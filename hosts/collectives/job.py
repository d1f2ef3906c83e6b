"""The interface of all jobs. ``jobs`` lists them."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mrclab.hosts.collectives.communicator import Communicator, Steps

Samples = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Times:
    """When a job begins, and when its measurement begins (CLOCK_MONOTONIC, ns)."""

    start_ns: int
    measure_ns: int


class Job(Protocol):
    """A rank's part of a workload."""

    @property
    def problem(self) -> str | None:
        """The error in the arrived data, or None."""

    def prepare(self, comm: Communicator) -> None:
        """Expose the memory that the job needs."""

    def peers(self) -> set[int]:
        """Return the ranks that it communicates with."""

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """Run the job."""

    def samples(self) -> Samples:
        """Return the job's samples by name."""


def columns(rows: Sequence[tuple[int, ...]], names: tuple[str, ...]) -> Samples:
    """Return rows of integers as one array per column."""
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: table[:, i] for i, name in enumerate(names)}


def as_int64(values: array[int]) -> npt.NDArray[np.int64]:
    """Return an array of the standard library as a numpy array."""
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, np.int64)
