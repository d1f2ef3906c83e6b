"""A rank's accelerator: a process that computes gradients next to the NIC's process, as a GPU does.

The NIC must go on while a gradient is computed, since other ranks send at that time; so it has a separate
process, and the accelerator gets a CPU only when no NIC wants it. Gradients change hands in shared memory.
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
from dataclasses import asdict

import numpy as np
import numpy.typing as npt

from mrclab.hosts.training.compute import HereCompute
from mrclab.hosts.training.model import DIGEST_WORDS, Vector, count_of
from mrclab.hosts.training.patience import patience_now_s, until_ready
from mrclab.hosts.training.settings import Settings, Text
from mrclab.linux.system import end_with_parent

ORDER = struct.Struct("=q")
"""To the process: the number of a step."""
ANSWER = struct.Struct(f"=d{DIGEST_WORDS}q")
"""From it: the loss, and the digest of the parameters."""
LEAST_PRIORITY = 19
MODULE = "mrclab.hosts.training.accelerator"


class Accelerator:
    """The process of a replica (see `mrclab.hosts.training.compute.Compute`)."""

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
