"""Notice at once that a switch's process has ended, or that a process is stopped.

The time of an end is recorded as well. A process is stopped by SIGSTOP, by a debugger or by the cgroup
freezer. The scheduler's statistics do not show such a stop: they count only the time that a process runs or
waits for a CPU. Agents measure their own stops (`mrclab.hosts.streams.rounds.Beat`). This module watches the
other processes.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from mrclab.linux.scheduling import before_others

# The time, ms, between two checks of each process. A process can end at any time between two checks.
DEATH_LOOK_MS = 5
_PF_EXITING = 0x4  # a flag in /proc/PID/stat: the task runs no more of its code


@dataclass(frozen=True, slots=True)
class Death:
    """The end of a watched process, which happened between two times of CLOCK_MONOTONIC (ns)."""

    name: str
    t_before_ns: int
    t_after_ns: int


class DeathWatch:
    """Watch processes from a separate thread, within a ``with``.

    A process counts as ended when it runs no more code. The kernel closes its sockets later: about 50 ms
    later for a switch with packet sockets. At ``t_before_ns``, the process was last seen running. The end
    was at most ``DEATH_LOOK_MS`` later, if the watching thread got a CPU in time.
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
        """Return a descriptor that is readable when a process has ended."""
        return self._notice

    def add(self, name: str, pid: int) -> None:
        """Watch one more process."""
        self._pids = {**self._pids, name: pid}

    def wait(self, timeout_s: float) -> Death | None:
        """Return the next death that was not returned yet, or None after ``timeout_s``."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._notice)
        with suppress(queue.Empty):
            return self._deaths.get(timeout=timeout_s) if timeout_s > 0 else self._deaths.get_nowait()
        return None

    def _watch(self) -> None:
        before = time.monotonic_ns()
        reported: set[int] = set()
        while not self._ended.wait(DEATH_LOOK_MS / 1000):
            looked = time.monotonic_ns()
            for name, pid in self._pids.items():
                if pid not in reported and _task_exiting(Path(f"/proc/{pid}")):
                    reported.add(pid)
                    self._deaths.put(Death(name, before, time.monotonic_ns()))
                    os.eventfd_write(self._notice, 1)
            before = looked


def exiting(pid: int) -> bool:
    """Return True if a process has begun to end, so that it runs no more of its code."""
    return all(_task_exiting(task) for task in _tasks(pid))


def wait_exiting(pid: int, timeout_s: float) -> bool:
    """Poll without a pause until a process has begun to end. After ``timeout_s``, return False."""
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


LOOK_MS = 10
"""The time between two looks at each process, in ms. A shorter stop may be missed."""
OWN_LOOK_MS = 100
"""If no process is watched, the watching thread reads its clock at this interval, in ms."""
GAP_NS = 500_000_000
"""If more time than this (ns) passes between two looks, the watching process or the machine was stalled."""
OWN = "the experiment's own process"
STOPPED = ("T", "t")
FROZEN = "frozen"
_ASLEEP = ("S", "D")
_MOUNTS = Path("/proc/self/mounts")


class StallWatch:
    """The time for which each process was stopped. A thread observes the processes during the ``with``."""

    def __init__(
        self,
        pids: Mapping[str, int],
        clock: Callable[[], int] = time.monotonic_ns,
        state: Callable[[int], str] | None = None,
    ) -> None:
        self._pids = dict(pids)
        self._clock = clock
        self._state = state or state_of
        self._stopped_ns: dict[str, int] = {}
        self._last_ns = clock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stall-watch", daemon=True)

    def __enter__(self) -> Self:
        self._last_ns = self._clock()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def add(self, pids: Mapping[str, int]) -> None:
        """Watch these processes as well."""
        with self._lock:
            self._pids |= pids

    def stopped_ns(self) -> dict[str, int]:
        """Return for how long each process was seen stopped, from the start of the watch until now."""
        with self._lock:
            self.look()
            return dict(self._stopped_ns)

    def look(self) -> None:
        """Look at each process once. If it is stopped, add the time since the last look to its total."""
        now = self._clock()
        passed, self._last_ns = now - self._last_ns, now
        if passed > GAP_NS:
            self._stopped_ns[OWN] = self._stopped_ns.get(OWN, 0) + passed
        for name, pid in self._pids.items():
            if self._state(pid) in (*STOPPED, FROZEN):
                self._stopped_ns[name] = self._stopped_ns.get(name, 0) + passed

    def _watch(self) -> None:
        with before_others():  # otherwise a busy machine would look like a stopped process
            while not self._ended.wait((LOOK_MS if self._pids else OWN_LOOK_MS) / 1000):
                with self._lock:
                    self.look()


def state_of(pid: int) -> str:
    """Return the state letter of a process, `FROZEN` if its cgroup is frozen, or "" if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
        asleep = state in _ASLEEP  # a frozen process is reported as asleep
        return FROZEN if asleep and frozen(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")) else state
    except OSError:
        return ""


def frozen(groups: str) -> bool:
    """Return True if one of the cgroups in ``groups``, the text of a /proc/PID/cgroup, is frozen."""
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # cgroup version 2
            mount, name, sign = _mounted("cgroup2"), "cgroup.events", "frozen 1"
        elif "freezer" in controllers.split(","):
            mount, name, sign = _mounted("cgroup", "freezer"), "freezer.state", "FR"  # FROZEN or FREEZING
        else:
            continue
        if mount is None:
            continue
        with suppress(OSError):  # the root cgroup has no such file
            if sign in (mount / path.lstrip("/") / name).read_text(encoding="utf-8"):
                return True
    return False


@cache
def _mounted(kind: str, controller: str = "") -> Path | None:
    """Return the mount point of a cgroup hierarchy; None if it is not mounted."""
    for line in _MOUNTS.read_text(encoding="utf-8").splitlines():
        _, where, found, options, *_ = line.split(" ")
        if found == kind and (not controller or controller in options.split(",")):
            return Path(where)
    return None
