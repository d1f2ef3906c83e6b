"""The part that computes a rank's gradients, as its job sees it: in this process, or in a second one."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from mrclab.hosts.training.model import Model, Vector
from mrclab.hosts.training.settings import Settings, Text


class Compute(Protocol):
    """One rank's replica of the model. Steps are begun in order, and each is done before the next.

    ``vector`` is where gradients change hands: a step leaves the rank's own there, and the sum over all ranks
    must be there when the next step begins.
    """

    vector: Vector

    @property
    def descriptor(self) -> int | None:
        """Return a descriptor, readable once a step is done; None if steps are done as soon as they begin."""

    def begin(self, step: int) -> None:
        """Take the sum in ``vector`` into the parameters, then compute a gradient.

        Step 0 starts from the beginning.
        """

    def done(self) -> bool:
        """Return True once the step is done. Raise RuntimeError if it never will be."""

    @property
    def loss(self) -> float:
        """Return the loss of the step that is done, nats a character."""

    @property
    def digest(self) -> npt.NDArray[np.int64]:
        """Return the digest of the parameters that the step that is done began with."""


class HereCompute:
    """A replica in this process: a step is done as soon as it is begun."""

    descriptor: int | None = None

    def __init__(self, settings: Settings, rank: int) -> None:
        """Compile the model. Raise MachineError where JAX is not installed."""
        self._model = Model(settings, Text.shipped())
        self.rank = rank
        self._loss = 0.0
        self.vector: Vector = np.zeros(self._model.count, np.float32)

    def warm_up(self) -> None:
        """Have everything compiled."""
        self._model.compile()

    def begin(self, step: int) -> None:
        """See Compute."""
        if step:
            self._model.update(step - 1, self.vector)
        else:
            self._model.restart()
        self._loss, self.vector[:] = self._model.gradient(step, self.rank)

    def done(self) -> bool:
        """See Compute."""
        return True

    @property
    def loss(self) -> float:
        """See Compute."""
        return self._loss

    @property
    def digest(self) -> npt.NDArray[np.int64]:
        """See Compute."""
        return self._model.digest()
