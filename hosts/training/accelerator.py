"""A rank's accelerator: a process that computes gradients next to the NIC's process, as a GPU does.

The NIC must work while a gradient is computed, because other ranks send at that time. So the accelerator is a
separate process with the lowest priority: it gets a CPU only when no NIC needs it. The two processes exchange
gradients in shared memory. A job uses only the interface ``Compute``; ``HereCompute`` implements it in the
job's own process.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mrclab.hosts.training.model import DIGEST_WORDS, Model, Settings, Text, Vector, count_of
from mrclab.linux.system import end_with_parent

START_TIMEOUT_S = 50.0
"""Time limit for an accelerator to compile and be ready, on a machine without other load, s."""
LONGEST_START_S = 400.0
LOOK_S = 5.0
"""Interval at which the load of the machine is read again, s."""


def patience_s(load: float) -> float:
    """Return the time limit for an accelerator (s); ``load`` is the number of running programs per CPU.

    While the accelerator compiles, it shares the CPUs with these programs.
    """
    return min(START_TIMEOUT_S * max(1.0, load), LONGEST_START_S)


def patience_now_s() -> float:
    """Return `patience_s` for the load of the machine in the last minute."""
    return patience_s(os.getloadavg()[0] / (os.cpu_count() or 1))


def until_ready(
    ready: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
    limit_s: Callable[[], float] = patience_now_s,
) -> bool:
    """Wait for an accelerator. Return False if the time limit for the present load has passed.

    ``ready`` waits for at most the given number of seconds, and returns whether the accelerator answered.
    """
    begun_s = clock()
    while not ready(LOOK_S):
        if clock() - begun_s >= limit_s():
            return False
    return True


class Compute(Protocol):
    """One rank's replica of the model. Steps run in order; a step must be done before the next step begins.

    Gradients are exchanged in ``vector``. A step writes the rank's own gradient there. The sum over all ranks
    must be there when the next step begins.
    """

    vector: Vector

    @property
    def descriptor(self) -> int | None:
        """Return a descriptor that is readable when a step is done; None if ``begin`` completes the step."""

    def begin(self, step: int) -> None:
        """Update the parameters by the sum in ``vector`` (step 0: reset them). Then compute a gradient."""

    def done(self) -> bool:
        """Return True if the step is done. Raise RuntimeError if the accelerator has failed."""

    @property
    def loss(self) -> float:
        """Return the loss of the last step that is done, nats per character."""

    @property
    def digest(self) -> npt.NDArray[np.int64]:
        """Return the digest (hash) of the parameters at the beginning of the last step that is done."""


class HereCompute:
    """A replica of the model in this process: ``begin`` completes the step."""

    descriptor: int | None = None

    def __init__(self, settings: Settings, rank: int) -> None:
        """Load the model. Raise MachineError if JAX is not installed."""
        self._model = Model(settings, Text.shipped())
        self.rank = rank
        self._loss = 0.0
        self.vector: Vector = np.zeros(self._model.count, np.float32)

    def warm_up(self) -> None:
        """Compile the model's functions."""
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


ORDER = struct.Struct("=q")
"""Message to the accelerator's process: the number of a step."""
ANSWER = struct.Struct(f"=d{DIGEST_WORDS}q")
"""Message from the accelerator's process: the loss, and the digest of the parameters."""
LEAST_PRIORITY = 19
MODULE = "mrclab.hosts.training.accelerator"


class Accelerator:
    """A replica of the model in a separate process (see `Compute`)."""

    def __init__(self, settings: Settings, rank: int) -> None:
        """Start the process. The new process runs on the same CPUs as this process."""
        count = count_of(settings, len(Text.shipped().alphabet))
        memory = os.memfd_create("gradients")
        os.ftruncate(memory, count * 4)
        self.vector: Vector = _mapped(memory)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", MODULE, str(theirs.fileno()), str(memory), str(rank)]
        with theirs:
            self._process = subprocess.Popen(
                [*argv, json.dumps(asdict(settings))],
                pass_fds=[theirs.fileno(), memory],
                stdin=subprocess.DEVNULL,
            )
        os.close(memory)
        self._answer: tuple[float, npt.NDArray[np.int64]] | None = None

    @property
    def pid(self) -> int:
        """Return the ID of the process."""
        return self._process.pid

    def warm_up(self) -> None:
        """Wait until the model is compiled. Raise RuntimeError if the process ends or takes too long."""
        if not until_ready(lambda left_s: bool(select.select([self._socket], [], [], left_s)[0])):
            raise RuntimeError(f"the accelerator is not ready after {patience_now_s():.0f} s")
        self._receive()

    @property
    def descriptor(self) -> int | None:
        """See Compute."""
        return self._socket.fileno()

    def begin(self, step: int) -> None:
        """See Compute."""
        self._answer = None
        try:
            self._socket.sendall(ORDER.pack(step))
        except OSError:
            raise self._ended() from None

    def done(self) -> bool:
        """See Compute."""
        if self._answer is None and select.select([self._socket], [], [], 0)[0]:
            self._answer = self._receive()
        return self._answer is not None

    @property
    def loss(self) -> float:
        """See Compute."""
        return self._found()[0]

    @property
    def digest(self) -> npt.NDArray[np.int64]:
        """See Compute."""
        return self._found()[1]

    def close(self) -> None:
        """End the process."""
        self._socket.close()
        self._process.wait()

    def _found(self) -> tuple[float, npt.NDArray[np.int64]]:
        if self._answer is None:
            raise RuntimeError("the step is not done")
        return self._answer

    def _receive(self) -> tuple[float, npt.NDArray[np.int64]]:
        try:
            data = self._socket.recv(ANSWER.size)
        except ConnectionError:
            data = b""
        if not data:
            raise self._ended()
        loss, *digest = ANSWER.unpack(data)
        return loss, np.array(digest, np.int64)

    def _ended(self) -> RuntimeError:
        return RuntimeError(f"the accelerator ended with code {self._process.wait()}")


def _mapped(memory: int) -> Vector:
    return np.frombuffer(mmap.mmap(memory, 0), np.float32)


def main() -> None:
    """Run the process of a replica until the other end of its socket is closed."""
    end_with_parent()
    orders = socket.socket(fileno=int(sys.argv[1]))
    shared = _mapped(int(sys.argv[2]))
    replica = HereCompute(Settings(**json.loads(sys.argv[4])), int(sys.argv[3]))
    replica.warm_up()
    # Lower the priority only after the compilation, which would otherwise take minutes on a busy machine.
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, LEAST_PRIORITY)
    orders.sendall(ANSWER.pack(0.0, *replica.digest.tolist()))
    while order := orders.recv(ORDER.size):
        replica.vector[:] = shared
        replica.begin(*ORDER.unpack(order))
        shared[:] = replica.vector
        orders.sendall(ANSWER.pack(replica.loss, *replica.digest.tolist()))


if __name__ == "__main__":
    main()
