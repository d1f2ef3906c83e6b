"""Notice at once that a switch's process has ended, or that a process stands still.

For an end, the moment is noted, too. A process stands still without waiting for anything after SIGSTOP, in a
debugger or in the cgroup freezer. The scheduler's statistics count only who runs or waits for a CPU; a
stopped process does neither. This is for processes that cannot report their own gaps; agents do
(`mrclab.hosts.streams.rounds.Beat`).
"""

from __future__ import annotations

import contextlib
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

# While nothing happens, how often a process is seen alive: it bounds the moment of a death from below.
DEATH_LOOK_MS = 5
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
    to run, ``DEATH_LOOK_MS`` earlier or less unless the watcher waited for a CPU.
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
        while not self._ended.wait(DEATH_LOOK_MS / 1000):
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


LOOK_MS = 10
"""How often each process is looked at. A stop that is shorter may be missed."""
OWN_LOOK_MS = 100
"""How often the watching process alone looks at its clock."""
GAP_NS = 500_000_000
"""A longer pause between two looks is a stall of the watching process itself, or of the machine."""
OWN = "the experiment's own process"
STOPPED = ("T", "t")
FROZEN = "frozen"
_ASLEEP = ("S", "D")
_MOUNTS = Path("/proc/self/mounts")


class StallWatch:
    """Adds up how long each process was stopped. A context manager: inside it a thread looks."""

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
        """Return how long each process was seen stopped since the beginning, until now."""
        with self._lock:
            self.look()
            return dict(self._stopped_ns)

    def look(self) -> None:
        """Look at each process once. The time since the last look counts for each that stands still now."""
        now = self._clock()
        passed, self._last_ns = now - self._last_ns, now
        if passed > GAP_NS:
            self._stopped_ns[OWN] = self._stopped_ns.get(OWN, 0) + passed
        for name, pid in self._pids.items():
            if self._state(pid) in (*STOPPED, FROZEN):
                self._stopped_ns[name] = self._stopped_ns.get(name, 0) + passed

    def _watch(self) -> None:
        with before_others():  # else a busy machine looks like a process that stands still
            while not self._ended.wait((LOOK_MS if self._pids else OWN_LOOK_MS) / 1000):
                with self._lock:
                    self.look()


def state_of(pid: int) -> str:
    """Return the state letter of a process, `FROZEN` if its cgroup is frozen, and empty if it is gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1].decode()
        asleep = state in _ASLEEP  # as a frozen process seems to be
        return FROZEN if asleep and frozen(Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")) else state
    except OSError:
        return ""


def frozen(groups: str) -> bool:
    """Return True if one of the cgroups in ``groups``, the text of proc(5)'s ``cgroup``, is frozen."""
    for line in groups.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":  # version 2
            mount, name, sign = _mounted("cgroup2"), "cgroup.events", "frozen 1"
        elif "freezer" in controllers.split(","):
            mount, name, sign = _mounted("cgroup", "freezer"), "freezer.state", "FR"  # FROZEN, FREEZING
        else:
            continue
        if mount is None:
            continue
        with suppress(OSError):  # the root has no such file
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
