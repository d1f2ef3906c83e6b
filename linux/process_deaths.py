"""Noticing at once that a switch's process has ended, and saying when that was."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

# While nothing happens, how often a process is seen alive: it bounds the moment of a death from below.
LOOK_MS = 5
_PF_EXITING = 0x4  # of the flags in /proc/PID/stat: the task runs no more of its code


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a watched process, which fell between two stamps of CLOCK_MONOTONIC (ns)."""

    name: str
    t_before_ns: int
    t_after_ns: int


class DeathWatch:
    """Watches processes from a separate thread. A context manager: inside it deaths are noticed.

    A process counts as ended from when it runs no more code, not from when the kernel has closed all it had,
    which for a switch with its packet sockets is some 50 ms later. ``t_before_ns`` is when it was last seen
    to run, ``LOOK_MS`` earlier or less unless the watcher waited for a CPU.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._deaths: queue.SimpleQueue[Death] = queue.SimpleQueue()
        self._pids = dict(pids)
        self._ended = threading.Event()
        self._notice = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="death-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        os.close(self._notice)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a death has been noticed."""
        return self._notice

    def add(self, name: str, pid: int) -> None:
        """Watch one more process."""
        self._pids = {**self._pids, name: pid}

    def wait(self, timeout_s: float) -> Death | None:
        """Return the next death that was not returned yet, or None when the time is over."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._notice)
        with contextlib.suppress(queue.Empty):
            return self._deaths.get(timeout=timeout_s) if timeout_s > 0 else self._deaths.get_nowait()
        return None

    def _watch(self) -> None:
        before = time.monotonic_ns()
        reported: set[int] = set()
        while not self._ended.wait(LOOK_MS / 1000):
            looked = time.monotonic_ns()
            for name, pid in self._pids.items():
                if pid not in reported and _task_exiting(Path(f"/proc/{pid}")):
                    reported.add(pid)
                    self._deaths.put(Death(name, before, time.monotonic_ns()))
                    os.eventfd_write(self._notice, 1)
            before = looked


def exiting(pid: int) -> bool:
    """Return True if a process has begun to end, and so runs no more of its code."""
    return all(_task_exiting(task) for task in _tasks(pid))


def wait_exiting(pid: int, timeout_s: float) -> bool:
    """Poll without a pause until a process has begun to end; return true if it did in time."""
    deadline = time.monotonic() + timeout_s
    while not exiting(pid):
        if time.monotonic() > deadline:
            return False
    return True


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []


def _task_exiting(task: Path) -> bool:
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(fields[6]) & _PF_EXITING)
