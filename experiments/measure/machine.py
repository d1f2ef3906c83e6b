"""The machine's counters at one moment: CPU times of /proc, the cgroup's throttling, the endpoints' beats.

The kernel adds up every wait of a thread in /proc/PID/task/TID/schedstat, and every endpoint records its own
longest gaps (`mrclab.hosts.streams.rounds.Beat`), so nothing has to be sampled.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Of one thread since its start: ns on a CPU and ns waiting for one."""

    run_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time (CLOCK_MONOTONIC ns) in which a process that works all the time did nothing."""

    process: str
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Return how long it was."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Beats:
    """Reports of the endpoints about themselves.

    ``packets`` is how many data packets were sent so far; ``gaps`` and the times of ``retired_ns``, when EVs
    were retired, are those since the last report. ``first`` is true if the endpoints run before all ordinary
    processes: other programs cannot take a CPU from them. ``cpus`` has the CPU of each process that shares it
    with others: then the work of all of them counts.
    """

    packets: int
    gaps: tuple[Gap, ...] = ()
    first: bool = False
    retired_ns: tuple[int, ...] = ()
    cpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The machine's counters at monotonic ``t_ns``.

    ``busy``, ``steal`` and ``total`` are ticks of all CPUs together; ``threads`` holds (process name given by
    the caller, thread id) -> times; ``throttled_us`` is the cgroup's; ``pressure_us`` the time in which
    some task waited for a CPU (PSI). None if the kernel does not report it. ``stopped_ns`` is how long each
    process that does not beat stood still so far; ``beats`` is None if no process beats.
    """

    t_ns: int
    busy: int
    steal: int
    total: int
    threads: Mapping[tuple[str, int], ThreadTimes] = field(default_factory=dict)
    throttled_us: int | None = None
    pressure_us: int | None = None
    stopped_ns: Mapping[str, int] = field(default_factory=dict)
    beats: Beats | None = None


def take_snapshot(
    pids: Mapping[str, int] | None = None,
    root: Path = Path("/"),
    stopped_ns: Mapping[str, int] | None = None,
    beats: Beats | None = None,
) -> Snapshot:
    """Read the kernel's counters now. ``pids`` names the processes to watch; an ended one is left out.

    ``stopped_ns`` and ``beats`` do not come from the kernel. They are stored as given; see `Snapshot`.
    """
    fields = [int(word) for word in (root / "proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    user, nice, system, idle, iowait, irq, softirq, steal = fields
    threads: dict[tuple[str, int], ThreadTimes] = {}
    for name, pid in (pids or {}).items():
        threads |= {(name, tid): times for tid, times in _threads(root, pid)}
    return Snapshot(
        t_ns=time.monotonic_ns(),
        busy=user + nice + system + irq + softirq,
        steal=steal,
        total=user + nice + system + idle + iowait + irq + softirq + steal,
        threads=threads,
        throttled_us=_throttled_us(root),
        pressure_us=_pressure_us(root),
        stopped_ns=dict(stopped_ns or {}),
        beats=beats,
    )


def _threads(root: Path, pid: int) -> Iterable[tuple[int, ThreadTimes]]:
    try:
        tids = os.listdir(root / "proc" / str(pid) / "task")
    except OSError:
        return
    for tid in tids:
        try:
            run, wait, _ = (root / "proc" / str(pid) / "task" / tid / "schedstat").read_text().split()
        except (OSError, ValueError):
            continue
        yield int(tid), ThreadTimes(int(run), int(wait))


def _throttled_us(root: Path) -> int | None:
    """Return the throttled time of this process's cgroup (version 2, or 1's cpu controller)."""
    for name, unit in (
        ("sys/fs/cgroup/cpu.stat", "throttled_usec"),
        ("sys/fs/cgroup/cpu/cpu.stat", "throttled_time"),
    ):
        try:
            lines = (root / name).read_text().splitlines()
        except OSError:
            continue
        values = dict(line.split(" ", 1) for line in lines if " " in line)
        if unit in values:
            return int(values[unit]) // (1000 if unit == "throttled_time" else 1)
    return None


def _pressure_us(root: Path) -> int | None:
    try:
        words = (root / "proc/pressure/cpu").read_text().split("\n", 1)[0].split()
    except OSError:
        return None
    return int(words[-1].removeprefix("total=")) if words and words[0] == "some" else None
