"""A rank's accelerator: a process that computes gradients next to the NIC's process, as a GPU does.

The NIC must go on while a gradient is computed, since other ranks send at that time; so it has a separate
process, and the accelerator gets a CPU only when no NIC wants it. Gradients change hands in shared memory.
A job sees only ``Compute``, which may also be in its own process (``HereCompute``). How long to wait for an
accelerator that compiles depends on the load of the machine, as it is while one waits.
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
"""Until an accelerator is ready, on a machine with nothing else on its CPUs: it compiles in that time."""
LONGEST_START_S = 400.0
LOOK_S = 5.0
"""How often the load is read again."""


def patience_s(load: float) -> float:
    """Return how long to wait for an accelerator (s), by the number of programs that want each CPU.

    It shares the CPUs with them while it compiles.
    """
    return min(START_TIMEOUT_S * max(1.0, load), LONGEST_START_S)


def patience_now_s() -> float:
    """Return `patience_s` for the machine's load of the last minute."""
    return patience_s(os.getloadavg()[0] / (os.cpu_count() or 1))


def until_ready(
    ready: Callable[[float], bool],
    clock: Callable[[], float] = time.monotonic,
    limit_s: Callable[[], float] = patience_now_s,
) -> bool:
    """Wait for an accelerator, and return False if the limit of the present load has passed.

    ``ready`` waits for so many seconds at most and returns whether the accelerator answered.
    """
    begun_s = clock()
    while not ready(LOOK_S):
        if clock() - begun_s >= limit_s():
            return False
    return True


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


ORDER = struct.Struct("=q")
"""To the process: the number of a step."""
ANSWER = struct.Struct(f"=d{DIGEST_WORDS}q")
"""From it: the loss, and the digest of the parameters."""
LEAST_PRIORITY = 19
MODULE = "mrclab.hosts.training.accelerator"


class Accelerator:
    """The process of a replica (see `mrclab.hosts.training.accelerator.Compute`)."""

    def __init__(self, settings: Settings, rank: int) -> None:
        """Start the process. It inherits this process's CPUs."""
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
        """Return the process's number."""
        return self._process.pid

    def warm_up(self) -> None:
        """Wait until everything is compiled. Raise RuntimeError if that takes too long, or it ends."""
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
    # Only from here on: nobody uses the network yet, and on a busy machine this would take minutes.
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
