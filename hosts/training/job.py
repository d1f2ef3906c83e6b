"""A rank's part of a training run: in each step the rank's gradient is computed and summed over all ranks."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

from mrclab.hosts.collectives.collective_operations import DATA, all_reduce, barrier, expose_for_collectives
from mrclab.hosts.collectives.communicator import Communicator, Samples, Steps, Times, Wait, as_int64, columns
from mrclab.hosts.training.accelerator import Accelerator, Compute, HereCompute
from mrclab.hosts.training.model import Settings

LOSS_SCALE = 1e9
"""Losses are stored in units of 1e-9 nats, because all samples are integers."""
DTYPE = np.dtype(np.float32)


class TransformerJob:
    """Steps of synchronous, data-parallel training of a transformer.

    A step computes for at least ``compute_ns``, sums the gradients, and waits for all ranks. The sum is a
    ring all-reduce, whose order of additions is fixed. Usually an accelerator (a second process) computes the
    gradients. With the parameter ``in_process``, this process computes the gradients (for virtual time).
    With ``steps_file``, rank 0 appends a line of JSON to this file after each step, for viewers.
    """

    def __init__(self, params: Mapping[str, Any], rank: int, size: int, seed: int) -> None:
        """Start the accelerator. Raise KeyError for a missing parameter, MachineError without JAX."""
        self.problem: str | None = None
        self._rank = rank
        self._size = size
        self._steps = params["steps"]
        self._compute_ns = params["compute_ns"]
        settings = Settings.of(params, size, seed)
        make: type[HereCompute] | type[Accelerator]
        make = HereCompute if params.get("in_process") else Accelerator
        self._replica = make(settings, rank)
        self._compute: Compute = self._replica
        self._count = len(self._compute.vector)
        self._notes: list[tuple[int, int, int, int]] = []
        self._losses = array("q")
        self._digests: list[tuple[int, ...]] = []
        watched = params.get("steps_file") if rank == 0 else None
        self._told = open(watched, "a", buffering=1, encoding="utf-8") if watched else None  # noqa: SIM115

    def prepare(self, comm: Communicator) -> None:
        """See Job. Wait until the model is compiled."""
        expose_for_collectives(comm, self._count, DTYPE, scratch=True)
        self._replica.warm_up()

    def peers(self) -> set[int]:
        """See Job."""
        return set(range(self._size)) - {self._rank}

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """See Job."""
        data = np.frombuffer(comm.regions[DATA], DTYPE, self._count)
        yield from comm.until(times.start_ns)
        yield from barrier(comm)
        yield from all_reduce(comm, self._count, DTYPE)  # sum zeros, to use each queue pair before step 0
        yield from barrier(comm)
        yield from comm.until(times.measure_ns)
        yield from barrier(comm)
        for step in range(self._steps):
            started = comm.now()
            yield from self._begin(step)
            yield from comm.until(started + self._compute_ns)
            data[:] = self._compute.vector
            computed = comm.now()
            yield from all_reduce(comm, self._count, DTYPE)
            reduced = comm.now()
            self._compute.vector[:] = data
            yield from barrier(comm)
            self._notes.append((started, computed, reduced, comm.now()))
            self._tell()
        yield from self._begin(self._steps)  # adds the last sum to the parameters, and stores their digest

    def _tell(self) -> None:
        """Write the completed step to ``steps_file``, if there is such a file."""
        if self._told is not None:
            start_ns, computed_ns, _, end_ns = self._notes[-1]
            step = {"start_ns": start_ns, "computed_ns": computed_ns, "end_ns": end_ns}
            self._told.write(json.dumps({**step, "loss": self._losses[-1] / LOSS_SCALE}) + "\n")

    def _begin(self, step: int) -> Steps[None]:
        """Begin a step, wait until its gradient is computed, and store the loss and the digest."""
        self._compute.begin(step)
        if not self._compute.done():
            yield Wait(self._compute.done, None, self._compute.descriptor)
        self._digests.append(tuple(self._compute.digest.tolist()))
        if step < self._steps:
            self._losses.append(round(self._compute.loss * LOSS_SCALE))

    def samples(self) -> Samples:
        """See Job: the times and the loss of each step, and the digests.

        A digest is a hash of all parameters, before each step and at the end.
        """
        times = columns(self._notes, ("start_ns", "computed_ns", "reduced_ns", "end_ns"))
        digests = np.array(self._digests, np.int64).reshape(-1)
        return {**times, "loss_e9": as_int64(self._losses), "digests": digests}
