"""Shared parts of the tests of training: a small model, and replicas whose steps a test waits for."""

import os
import select
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from typing import Any

import pytest

from mrclab.hosts.training.accelerator import Accelerator
from mrclab.hosts.training.model import NEEDED, Settings

SMALL: dict[str, Any] = {"layers": 1, "width": 8, "heads": 2, "context": 8, "batch": 2}
needs_jax = pytest.mark.skipif(
    any(find_spec(name) is None for name in NEEDED) and not os.environ.get("CI"),
    reason="JAX is not installed (pip install 'mrclab[training]')",
)


class Patient(Accelerator):
    """An accelerator whose caller waits for each step, as if the replica ran in the caller's process.

    JAX runs in another process, because it starts threads. The tests' process must have no threads when a
    test forks it.
    """

    def __init__(self, settings: Settings, rank: int) -> None:
        super().__init__(settings, rank)
        self.rank = rank
        self._ready = False

    def warm_up(self) -> None:
        """Wait until the model is compiled. A later call returns at once."""
        if not self._ready:
            super().warm_up()
        self._ready = True

    def begin(self, step: int) -> None:
        """Begin a step, and wait until it is done."""
        super().begin(step)
        select.select([self.descriptor], [], [])


@contextmanager
def replicas(settings: Settings) -> Iterator[list[Patient]]:
    """Yield a started replica for each rank. Several tests can use them, because step 0 resets them."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Patient(settings, rank))) for rank in range(settings.ranks)]
