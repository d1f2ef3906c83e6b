"""Detection of stalled CPUs: on each CPU a small process periodically stores the time.

The hosts and switches of a testbed share the CPUs of one machine. A CPU can stall because the hypervisor runs
another guest on it, or because of a process with a higher priority. Then all frames that need this CPU wait.
A prober on another CPU would mistake this wait for a dead link. Each small process runs ``python -m
mrclab.hosts.clustermapper.heartbeat``.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import time
from types import TracebackType
from typing import Self

from mrclab.linux.system import end_with_parent

BEAT_NS = 2_000_000
_SLOT = struct.Struct("=Q")


class Heartbeats:
    """A heartbeat process on each CPU that this process may use. A context manager."""

    def __init__(self) -> None:
        self._cpus = sorted(os.sched_getaffinity(0))
        self._fd = os.memfd_create("mrclab-heartbeats")
        os.ftruncate(self._fd, mmap.PAGESIZE)
        self._beats = mmap.mmap(self._fd, mmap.PAGESIZE)
        self._hearts: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "mrclab.hosts.clustermapper.heartbeat"]
        for slot, cpu in enumerate(self._cpus):
            _SLOT.pack_into(self._beats, slot * _SLOT.size, 0)
            self._hearts.append(
                subprocess.Popen(
                    [*command, str(cpu), str(slot), str(self._fd)],
                    pass_fds=[self._fd],
                    stdin=subprocess.DEVNULL,
                )
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for heart in self._hearts:
            heart.kill()
            heart.wait()
        self._beats.close()
        os.close(self._fd)

    def longest_ns(self, now_ns: int) -> int:
        """Return the largest age of a CPU's last heartbeat, ns; 0 until every CPU has had a heartbeat."""
        beats = [_SLOT.unpack_from(self._beats, slot * _SLOT.size)[0] for slot in range(len(self._cpus))]
        return 0 if 0 in beats else now_ns - min(beats)


def main() -> None:
    """Write the time periodically into the parent's shared memory, until the parent process ends."""
    cpu, slot, fd = map(int, sys.argv[1:])
    end_with_parent()
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, {cpu})
    beats = mmap.mmap(fd, mmap.PAGESIZE)
    while True:
        _SLOT.pack_into(beats, slot * _SLOT.size, time.monotonic_ns())
        time.sleep(BEAT_NS / 1e9)


if __name__ == "__main__":
    main()
