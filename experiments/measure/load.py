"""The load of a trial: counters of the machine and reports of the endpoints, between two snapshots.

A snapshot has the CPU times of /proc, the cgroup's throttling, and the endpoints' reports, called beats. No
sampling is needed: the kernel adds up each thread's waits for a CPU in /proc/PID/task/TID/schedstat, and
every endpoint records its longest gaps (`mrclab.hosts.streams.rounds.Beat`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from mrclab.experiments.measure.faults import FaultRecord


@dataclass(frozen=True, slots=True)
class ThreadTimes:
    """The times of a thread since its start: ns on a CPU, and ns of waiting for a CPU."""

    run_ns: int
    wait_ns: int


@dataclass(frozen=True, slots=True)
class Gap:
    """A time (CLOCK_MONOTONIC ns) in which an endpoint unexpectedly did not run."""

    process: str
    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Return the length of the gap."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Beats:
    """Reports of the endpoints about themselves.

    ``packets`` is the number of data packets sent so far. ``gaps`` has the gaps in which an endpoint did not
    run since the last report. ``retired_ns`` has the times at which EVs were retired since the last report.
    ``first`` is true if the endpoints have priority over all ordinary processes, so that other programs
    cannot take a CPU from them. If processes share CPUs, ``cpus`` has the CPU of each process. Then a CPU's
    load is the work of all its processes.
    """

    packets: int
    gaps: tuple[Gap, ...] = ()
    first: bool = False
    retired_ns: tuple[int, ...] = ()
    cpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """The machine's counters at monotonic ``t_ns``.

    ``busy``, ``steal`` and ``total`` are ticks of all CPUs together. ``threads`` has the times by (process
    name, thread id). ``throttled_us`` is the time for which the cgroup was throttled. ``pressure_us`` is the
    time for which some task waited for a CPU (PSI). Both are None if the kernel does not report these times.
    ``beats`` has the reports of the endpoints, or is None if no process reports. ``stopped_ns`` has, for each
    process that sends no reports, the time for which the process was stopped so far.
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
    """Read the kernel's counters now. ``pids`` names the processes to watch. Ended processes are left out.

    ``stopped_ns`` and ``beats`` do not come from the kernel. This function only stores them; see `Snapshot`.
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
    """Return the throttled time of this process's cgroup (version 2, or the cpu controller of version 1)."""
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


SWITCH_PREFIX = "switch "  # the beginning of the names of switch processes
MIN_WANTED = 0.01  # a thread that ran and waited for a smaller share of the time is ignored
MIN_TICKS = 10  # with fewer scheduler ticks a share is unknown
MIN_PACKETS = 100  # with fewer packets the CPU time per packet is unknown
SIMILAR_RATE = 0.1  # loads are compared if their rates differ by at most this share
KEPT_GAPS = 16  # the number of gaps of a trial that are kept; shorter gaps are dropped
# Shorter gaps do not count. Most gaps of undisturbed trials are shorter (docs/measuring.md, "Errors").
LEAST_GAP_NS = 750_000
GAP_SHARE = 0.1  # a gap longer than this share of the recovery time disturbs the measured time
# If the end of a recovery is unknown, we assume that the recovery ended AFTER_RETIREMENT_NS after the last
# retirement of an EV or, if no EV was retired, AFTER_FAULT_NS after the fault.
AFTER_RETIREMENT_NS = 500_000
AFTER_FAULT_NS = 20_000_000
# A gap has effects after its end, because packets that waited during the gap are sent or read late. We assume
# that these effects last AFTERMATH times as long as the gap.
AFTERMATH = 2
INJECTOR = "the process that makes faults"


@dataclass(frozen=True, slots=True)
class Load:
    """The load between two snapshots, as shares from 0 to 1 (None if unknown).

    * ``wait``: a thread's waiting time, divided by the time in which it ran or waited. The largest share of
      all threads counts. ``worst_thread`` is that thread's process, and ``wait_ns`` its waiting time.
    * ``pressure``: the share of the time in which some task of the machine waited for a CPU.
    * ``demand``: the share of the time in which the busiest thread of a switch process ran or waited.
      ``busiest_switch`` is this process.
    * ``stopped``: the process that was stopped longest. Only stops count that may have changed the measured
      times. ``stopped_ns`` is the length of this stop.

    Only endpoints with beats have the other fields:

    * ``share``: the share of the time in which the busiest thread of an endpoint ran or waited. If endpoints
      share CPUs, it is the share of the time in which the busiest CPU ran endpoints. ``busiest`` names the
      processes.
    * ``packets``: the number of data packets sent. ``cost_ns``: the CPU time per packet of each endpoint.
    * ``cost``: an endpoint's CPU time per packet, divided by this time in earlier trials. The largest value
      of all endpoints counts. ``dearest`` is that endpoint.
    * ``gaps``: the longest times in which an endpoint did not run.
    * For ``first`` and ``retired_ns`` see `Beats`.
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
    share: float | None = None
    busiest: str | None = None
    packets: int | None = None
    cost_ns: Mapping[str, int] = field(default_factory=dict)
    cost: float | None = None
    dearest: str | None = None
    gaps: tuple[Gap, ...] = ()
    first: bool = False
    retired_ns: tuple[int, ...] = ()

    @property
    def packets_per_s(self) -> int | None:
        """Return the rate at which data packets were sent; None if it is unknown."""
        if self.packets is None or self.duration_ns <= 0:
            return None
        return round(self.packets * 10**9 / self.duration_ns)

    def to_dict(self) -> dict[str, Any]:
        """Return the load as in result.json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Load:
        """Return the load that ``to_dict`` described."""
        gaps = tuple(Gap(**gap) for gap in entry.get("gaps", ()))
        return cls(**{**entry, "gaps": gaps, "retired_ns": tuple(entry.get("retired_ns", ()))})


def load_between(before: Snapshot, after: Snapshot) -> Load:
    """Return the load between two snapshots. Its ``cost`` is unknown until `compared` computes it."""
    total = after.total - before.total
    known = total >= MIN_TICKS
    duration = after.t_ns - before.t_ns
    wait: float | None = None
    wait_ns: int | None = None
    worst: str | None = None
    spent = [
        (key[0], now.run_ns - then.run_ns, now.wait_ns - then.wait_ns)
        for key, now in after.threads.items()
        if (then := before.threads.get(key)) is not None
    ]
    demand, busiest_switch = _busiest([s for s in spent if s[0].startswith(SWITCH_PREFIX)], duration)
    spent = [s for s in spent if not s[0].startswith(SWITCH_PREFIX)]
    for name, ran, waited in spent:
        if ran + waited <= duration * MIN_WANTED:
            continue
        share = waited / (ran + waited)
        if wait is None or share > wait:
            wait, wait_ns, worst = share, waited, name
    throttled = None
    if before.throttled_us is not None and after.throttled_us is not None:
        throttled = after.throttled_us - before.throttled_us
    pressure = None
    if before.pressure_us is not None and after.pressure_us is not None and duration > 0:
        pressure = (after.pressure_us - before.pressure_us) * 1000 / duration
    stood = {name: ns - before.stopped_ns.get(name, 0) for name, ns in after.stopped_ns.items()}
    stopped = max(stood, key=lambda name: stood[name], default=None)
    load = Load(
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
        busiest_switch=busiest_switch,
    )
    if before.beats is None or after.beats is None:
        return load
    shared = after.beats.cpus
    share_most, busiest = _fullest(spent, shared, duration) if shared else _busiest(spent, duration)
    packets = after.beats.packets - before.beats.packets
    lasting = [gap for gap in before.beats.gaps if gap.end_ns + AFTERMATH * gap.length_ns > before.t_ns]
    longest = sorted((*lasting, *after.beats.gaps), key=lambda gap: gap.length_ns, reverse=True)[:KEPT_GAPS]
    return replace(
        load,
        share=share_most,
        busiest=busiest,
        packets=packets,
        cost_ns=_cost_ns(spent, packets),
        gaps=tuple(longest),
        first=after.beats.first,
        retired_ns=after.beats.retired_ns,
    )


def compared(load: Load, others: Sequence[Load]) -> Load:
    """Return the load with ``cost``: CPU time per packet, divided by the median of loads with a similar rate.

    Loads with other rates do not count: at a lower rate, a packet costs more CPU time.
    """
    rate = load.packets_per_s
    near = [o.cost_ns for o in others if rate and abs((o.packets_per_s or 0) / rate - 1) <= SIMILAR_RATE]
    ratios = {}
    for name, ns in load.cost_ns.items():
        usual = [cost_ns[name] for cost_ns in near if cost_ns.get(name)]
        if usual:
            ratios[name] = ns / median(usual)
    dearest = max(ratios, key=lambda name: ratios[name], default=None)
    return load if dearest is None else replace(load, cost=ratios[dearest], dearest=dearest)


_Spent = tuple[str, int, int]
"""The process of a thread, its time on a CPU (ns), and its time of waiting for a CPU (ns)."""


def _busiest(spent: Sequence[_Spent], duration_ns: int) -> tuple[float | None, str | None]:
    """Return the busiest thread's share of the duration, and the name of this thread's process.

    The share is the time in which the thread ran or waited for a CPU, divided by the duration.
    """
    most: float | None = None
    busiest: str | None = None
    for name, ran, waited in spent:
        share = (ran + waited) / max(duration_ns, 1)
        if share > MIN_WANTED and (most is None or share > most):
            most, busiest = share, name
    return most, busiest


def _fullest(
    spent: Sequence[_Spent], cpus: Mapping[str, int], duration_ns: int
) -> tuple[float | None, str | None]:
    """Return the share of the time in which the busiest CPU ran its processes, and these processes' names.

    The waiting of these processes does not count: processes on one CPU wait for one another, even if the CPU
    is not full.
    """
    ran: dict[int, int] = {}
    for name, ns, _ in spent:
        if name in cpus:
            ran[cpus[name]] = ran.get(cpus[name], 0) + ns
    fullest = max(ran, key=lambda cpu: ran[cpu], default=None)
    if fullest is None:
        return None, None
    names = " and ".join(name for name, cpu in cpus.items() if cpu == fullest)
    return ran[fullest] / max(duration_ns, 1), names


def _cost_ns(spent: Sequence[_Spent], packets: int) -> dict[str, int]:
    """Return the CPU time per packet of each process; empty if there were too few packets."""
    if packets < MIN_PACKETS:
        return {}
    ran: dict[str, int] = {}
    for name, ns, _ in spent:
        ran[name] = ran.get(name, 0) + ns
    return {name: ns // packets for name, ns in ran.items()}


def unnoticed_ns(load: Load, recovered_ns: int | None) -> int | None:
    """Return the longest gap between beats that a valid trial may have; None if no endpoint sends beats.

    A gap of up to this length may make the trial's times longer.
    """
    if not load.packets:
        return None
    return max(LEAST_GAP_NS, round(GAP_SHARE * (recovered_ns or 0)))


def in_trial(load: Load, fault: FaultRecord, recovered_ns: int | None = None) -> Load:
    """Return the load of a trial. Its ``stopped_ns`` is the longest gap that may have changed the times.

    ``recovered_ns`` is the time from the fault to the recovery. If this time is unknown, the recovery is
    assumed to end a little after the last EV was retired. A fault has two times, before and after it was
    made. If the endpoints have priority, the time between these two times counts as a gap, too.
    """
    gaps = [*load.gaps]
    if load.first:
        gaps.append(Gap(INJECTOR, fault.t_before_ns, fault.t_after_ns))
    start_ns, middle_ns = fault.t_before_ns, fault.middle_ns
    retired = [t for t in load.retired_ns if middle_ns <= t <= (fault.restore_before_ns or t)]
    if recovered_ns is not None:
        end_ns = until_ns = middle_ns + recovered_ns
    elif retired:
        end_ns = max(retired)
        until_ns = end_ns + AFTER_RETIREMENT_NS
    else:
        end_ns, until_ns = middle_ns, middle_ns + AFTER_FAULT_NS
    least_ns = max(LEAST_GAP_NS, round(GAP_SHARE * (end_ns - start_ns)))
    hit = [
        gap
        for gap in gaps
        if gap.length_ns > least_ns
        and gap.start_ns < until_ns
        and gap.end_ns + AFTERMATH * gap.length_ns > start_ns
    ]
    longest = max(hit, key=lambda gap: gap.length_ns, default=None)
    if longest is None or longest.length_ns <= load.stopped_ns:
        return load
    return replace(load, stopped_ns=longest.length_ns, stopped=longest.process)
