"""Noticing processes that stand still without waiting for anything: SIGSTOP, a debugger, the cgroup freezer.

The scheduler's statistics count only who runs or waits for a CPU. A stopped process does neither. This is for
processes that cannot report their own gaps; agents do (`mrclab.hosts.streams.rounds.Beat`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from mrclab.linux.scheduling import before_others

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
