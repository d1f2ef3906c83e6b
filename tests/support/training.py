"""What tests of training share: a model that compiles in a moment, and replicas that are done at once."""

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
    """An accelerator that waits for each step, as a replica in this process would take its time.

    JAX has threads, and a process with threads must not fork, as other tests do: so none of it is in ours.
    """

    def __init__(self, settings: Settings, rank: int) -> None:
        super().__init__(settings, rank)
        self.rank = rank
        self._ready = False

    def warm_up(self) -> None:
        """Wait until everything is compiled, if it is not yet."""
        if not self._ready:
            super().warm_up()
        self._ready = True

    def begin(self, step: int) -> None:
        """Begin a step, and wait until it is done."""
        super().begin(step)
        select.select([self.descriptor], [], [])


@contextmanager
def replicas(settings: Settings) -> Iterator[list[Patient]]:
    """Yield a replica for each rank, started at once. They can be used again: step 0 starts anew."""
    with ExitStack() as stack:
        yield [stack.enter_context(closing(Patient(settings, rank))) for rank in range(settings.ranks)]
