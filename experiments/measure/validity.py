"""Validity of a run: did the machine keep up? CPU use, steal, waiting for a CPU, throttling.

A snapshot reads /proc and the cgroup; the difference of two says what happened between. The kernel
adds up every wait of a thread in /proc/PID/task/TID/schedstat, so no sampling is needed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# A trial above any of these is not to be trusted: the queue for a CPU is then part of what was measured.
MAX_BUSY = 0.95  # of all CPUs, over a trial
MAX_STEAL = 0.05  # of all CPUs, over a trial
MAX_WAIT = 0.25  # of the time that one thread of an agent wanted to run, over a trial
# The share of the time in which one thread of a switch ran or wanted to: near 1 its queue only grows.
# Short of that its waiting is part of the hop, hence of the RTT that is reported.
MAX_DEMAND = 0.85
SWITCH_PREFIX = "switch "  # of the names of switch processes
MAX_STOPPED = 0.0  # ns: a process that stands still measures nothing, and nothing is measured of it
MAX_THROTTLED = 0.0  # any throttling by a cgroup's quota stops the world for tens of milliseconds
MIN_WANTED = 0.01  # a thread that wanted less than this of the time says nothing about waiting
MIN_TICKS = 10  # fewer scheduler ticks than this say nothing about a share


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """Of one thread since its start: ns on a CPU and ns waiting for one."""

    run_ns: int
    wait_ns: int


@dataclass(frozen=True)
class Snapshot:
    """The machine's counters at monotonic ``t_ns``.

    ``busy``, ``steal`` and ``total`` are ticks of all CPUs together; ``threads`` holds (process name given by
    the caller, thread id) -> times; ``throttled_us`` is the cgroup's; ``pressure_us`` the time in which
    some task waited for a CPU (PSI). None where the kernel does not say. ``stopped_ns`` is how long each
    process stood still so far, by a signal or a debugger.
    """

    t_ns: int
    busy: int
    steal: int
    total: int
    threads: Mapping[tuple[str, int], ThreadTimes] = field(default_factory=dict)
    throttled_us: int | None = None
    pressure_us: int | None = None
    stopped_ns: Mapping[str, int] = field(default_factory=dict)


def take_snapshot(
    pids: Mapping[str, int] | None = None,
    root: Path = Path("/"),
    stopped_ns: Mapping[str, int] | None = None,
) -> Snapshot:
    """Read the counters now; ``pids`` names the processes to watch. One that is gone is left out.

    ``stopped_ns`` is what the kernel does not count: how long each process stood still so far.
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


@dataclass(frozen=True, slots=True)
class Load:
    """What happened between two snapshots, as shares from 0 to 1 (None where it is unknown).

    ``wait`` is of the worst watched thread: of the time in which it wanted to run, the share that it waited;
    ``worst_thread`` is its process. ``wait_ns`` is that thread's waiting. ``pressure`` is the share of the
    time in which some task of the machine waited for a CPU. ``demand`` is the share of the time in which
    the busiest thread of a switch process ran or waited for a CPU; ``busiest_switch`` is its process.
    ``stopped_ns`` is how long the process ``stopped`` stood still, of all that did the longest.
    """

    duration_ns: int
    busy: float | None
    steal: float | None
    wait: float | None
    wait_ns: int | None
    worst_thread: str | None
    throttled_us: int | None
    pressure: float | None
    demand: float | None = None
    busiest_switch: str | None = None
    stopped_ns: int = 0
    stopped: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json."""
        return asdict(self)


def load_between(before: Snapshot, after: Snapshot) -> Load:
    """Return the load from one snapshot to a later one."""
    total = after.total - before.total
    known = total >= MIN_TICKS
    duration = after.t_ns - before.t_ns
    wait: float | None = None
    wait_ns: int | None = None
    worst: str | None = None
    demand: float | None = None
    busiest: str | None = None
    for key, now in after.threads.items():
        then = before.threads.get(key)
        if then is None:
            continue
        ran, waited = now.run_ns - then.run_ns, now.wait_ns - then.wait_ns
        if ran + waited <= duration * MIN_WANTED:
            continue
        if key[0].startswith(SWITCH_PREFIX):
            wanted = (ran + waited) / duration
            if demand is None or wanted > demand:
                demand, busiest = wanted, key[0]
            continue
        share = waited / (ran + waited)
        if wait is None or share > wait:
            wait, wait_ns, worst = share, waited, key[0]
    throttled = None
    if before.throttled_us is not None and after.throttled_us is not None:
        throttled = after.throttled_us - before.throttled_us
    pressure = None
    if before.pressure_us is not None and after.pressure_us is not None and duration > 0:
        pressure = (after.pressure_us - before.pressure_us) * 1000 / duration
    stood = {name: ns - before.stopped_ns.get(name, 0) for name, ns in after.stopped_ns.items()}
    stopped = max(stood, key=lambda name: stood[name], default=None)
    return Load(
        stopped_ns=0 if stopped is None else stood[stopped],
        stopped=stopped if stopped is not None and stood[stopped] else None,
        duration_ns=duration,
        busy=(after.busy - before.busy) / total if known else None,
        steal=(after.steal - before.steal) / total if known else None,
        wait=wait,
        wait_ns=wait_ns,
        worst_thread=worst,
        throttled_us=throttled,
        pressure=pressure,
        demand=demand,
        busiest_switch=busiest,
    )


def busiest_share(before: Snapshot, after: Snapshot) -> float:
    """Return the share of the time (0 to 1) that the busiest watched thread ran."""
    ran = [
        now.run_ns - before.threads[key].run_ns for key, now in after.threads.items() if key in before.threads
    ]
    return max(ran, default=0) / max(after.t_ns - before.t_ns, 1)


@dataclass(frozen=True)
class Validity:
    """The verdict on a run: ``reasons`` is empty where it is valid; ``loads`` are per trial, in order."""

    reasons: tuple[str, ...]
    loads: tuple[Load, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def valid(self) -> bool:
        """True if the times of this run may be believed."""
        return not self.reasons

    def to_dict(self) -> dict[str, Any]:
        """Return it as it goes into result.json, with the rules that were applied."""
        rules = {
            "max_busy": MAX_BUSY,
            "max_steal": MAX_STEAL,
            "max_wait": MAX_WAIT,
            "max_demand": MAX_DEMAND,
            "max_throttled_us": MAX_THROTTLED,
            "max_stopped_ns": MAX_STOPPED,
        }
        loads = [load.to_dict() for load in self.loads]
        return {"reasons": list(self.reasons), "notes": list(self.notes), "rules": rules, "loads": loads}


def judge(
    loads: Sequence[Load],
    *,
    capture_drops: Mapping[str, int] | None = None,
    clock_change_ns: int = 0,
    clock_limit_ns: int = 20_000,
    also: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> Validity:
    """Apply the rules to the load of every trial and to the recorder's own troubles.

    ``capture_drops`` counts, for each capture, packets that the kernel dropped: one is enough, since the
    missing one might be the one that decides. ``also`` are reasons found elsewhere (a failed check of a
    trial).
    """
    reasons: list[str] = []
    for name, dropped in (capture_drops or {}).items():
        if dropped:
            reasons.append(f"the capture at the {name} lost {dropped} packets (dropped by kernel)")
    if clock_change_ns > clock_limit_ns:
        reasons.append(f"the clock was set during the run: realtime moved by {clock_change_ns / 1000:.0f} us")
    reasons += overloads(loads)
    return Validity((*reasons, *also), tuple(loads), tuple(notes))


# Key of `Load`, what it may be at most, and what to say where it was more.
_RULES = (
    ("busy", MAX_BUSY, "the CPUs were {value:.0%} busy (limit {limit:.0%})"),
    ("steal", MAX_STEAL, "the hypervisor took {value:.0%} of the CPUs (limit {limit:.0%})"),
    ("wait", MAX_WAIT, "{who} waited for a CPU {value:.0%} of its time (limit {limit:.0%})"),
    ("demand", MAX_DEMAND, "{switch} wanted a CPU {value:.0%} of the time (limit {limit:.0%})"),
    ("throttled_us", MAX_THROTTLED, "a cgroup quota stopped us for {value:.0f} us"),
    ("stopped_ns", MAX_STOPPED, "{stopped} stood still for {ms:.0f} ms, as if stopped by a signal"),
)
_BY_OTHERS = ("steal", "throttled_us")


def _broken(load: Load) -> list[str]:
    """Return the keys of the rules that a load breaks."""
    return [key for key, limit, _ in _RULES if (getattr(load, key) or 0) > limit]


def kept_up(load: Load) -> bool:
    """Return True if the machine kept up in a trial of this load: no rule is broken."""
    return not _broken(load)


def taken_away(load: Load) -> bool:
    """Return True if CPUs were taken away by others than this machine: another attempt may go better."""
    return any(key in _BY_OTHERS for key in _broken(load))


def overloads(loads: Sequence[Load]) -> list[str]:
    """Return at most one reason for each rule: in how many trials it was broken, and the worst of them."""
    reasons = []
    for key, limit, text in _RULES:
        broken = [(getattr(load, key), load) for load in loads if key in _broken(load)]
        if broken:
            value, load = max(broken, key=lambda item: float(item[0]))
            worst = text.format(
                value=value,
                ms=value / 1e6,
                limit=limit,
                who=load.worst_thread,
                switch=load.busiest_switch,
                stopped=load.stopped,
            )
            reasons.append(f"in {len(broken)} of {len(loads)} trials {worst}")
    return reasons
