"""Scheduling: real-time priority, CPU affinity and wake-up latency of processes and threads.

All processes of NICs (agents, ``mrclab perf``, ranks) use these functions, so their results are comparable.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mrclab.linux.system import is_linux

LOGGER = logging.getLogger(__name__)
MOST_NICE = -20
LIKE_AGENTS = 1
"""The real-time priority of NICs' processes (`take_cpu`)."""
ABOVE_AGENTS = 2
"""The real-time priority of threads that must not wait for a NIC's process."""
LEAST_WAIT_NS, MOST_WAIT_NS = 250_000, 5_000_000
"""Limits of each of the two waits in `chosen_wait_ns`. 5 ms is ten times a burst and its pause."""
TOGETHER_NS = 10_000_000
"""Changes with less time (ns) between them belong to the same moment (`chosen_wait_ns`)."""
WAKE_UP_LIMIT = Path("/dev/cpu_dma_latency")
"""A process that holds this file open sets how many us a CPU may take to wake up [pm_qos_interface]."""


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use: on Linux its affinity, elsewhere all CPUs."""
    return len(os.sched_getaffinity(0)) if is_linux() else os.cpu_count() or 1


def may_keep_cpus_awake() -> bool:
    """Return True if this machine lets the process keep CPUs awake."""
    try:
        os.close(os.open(WAKE_UP_LIMIT, os.O_WRONLY))
    except OSError:
        return False
    return True


def keep_cpus_awake() -> None:
    """Make idle CPUs poll for work rather than halt, as long as this process lives.

    A real NIC does not sleep between two packets. To wake a halted CPU, another CPU sends an interrupt. In a
    virtual machine, this interrupt costs both CPUs as much time as several packets. If the machine does not
    permit the change, nothing happens.
    """
    with contextlib.suppress(OSError):
        # Do not close the descriptor: the limit holds only while it is open. Child processes do not inherit
        # it.
        os.write(os.open(WAKE_UP_LIMIT, os.O_WRONLY), struct.pack("=i", 0))


def take_cpu(cpu: int | None, *, realtime: bool = True, awake: bool = True) -> str | None:
    """Run this process on one CPU (None: on any). With ``realtime``, give the process real-time priority.

    Child processes do not inherit the priority. With ``awake``, also call `keep_cpus_awake`. In a container
    without a real-time share (cgroup v1 with RT_GROUP_SCHED), even root may get no real-time priority. Then
    the process gets the largest ordinary share of the CPU, nice -20. Return a message about this, or None.
    """
    if cpu is not None:
        os.sched_setaffinity(0, {cpu})
    if not realtime:
        return None
    if awake:
        keep_cpus_awake()
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(LIKE_AGENTS))
        return None
    except PermissionError:
        refused = "no real-time priority here"
    # With SCHED_RESET_ON_FORK, child processes do not inherit the policy.
    os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    if go_before_ordinary():
        refused += f", agents run at nice {MOST_NICE} instead"
    else:
        refused += ", nor a higher one than others have"
    LOGGER.warning("%s: expect longer stalls", refused)
    return f"{refused}: expect longer stalls"


def go_before_ordinary() -> bool:
    """Give this process and its future children priority over ordinary processes. Return False if refused."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, MOST_NICE)
    except PermissionError:
        return False
    return True


@contextmanager
def ahead_of_ordinary() -> Iterator[None]:
    """Give this process and its new children priority over ordinary processes during the ``with``.

    If the system refuses the priority, do nothing.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    go_before_ordinary()
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)


def comes_first(pid: int) -> bool:
    """Return whether a process has real-time priority, which is above all ordinary priorities."""
    return os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO)


def stand_back() -> None:
    """Run this process on any CPU, and only when no other process needs the CPU."""
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.setpriority(os.PRIO_PROCESS, 0, 19)


@contextmanager
def before_others(priority: int = LIKE_AGENTS) -> Iterator[None]:
    """Give the calling thread real-time priority during the ``with``. If this is refused, do nothing.

    Use it for a thread with little work that must be on time. ``ABOVE_AGENTS`` is for a thread for which
    other threads wait. Threads and processes that the thread starts have no such priority. Afterwards the
    thread has its earlier policy again, for instance that of `chrt --batch`.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def beside_agents() -> int | None:
    """Return the CPU for work that must not wait for a NIC's process; None if there is one CPU only.

    Senders get the first CPUs, so the last CPU is returned. If there are two CPUs, the receiver also
    uses the last CPU.
    """
    cpus = sorted(os.sched_getaffinity(0)) if is_linux() else []
    return cpus[-1] if len(cpus) > 1 else None


def chosen_wait_ns(rng: random.Random, since_last_ns: int | None = None) -> int:
    """Return a random wait for `at_its_moment`, in nanoseconds.

    ``since_last_ns`` is the time since the last change, or None for the first change. If several changes
    belong to one moment, only the first change has a random wait. Otherwise the waits would add up, and the
    last of eight links would fail 50 ms late.

    An ordinary thread gets a CPU only when the NIC's process is idle. So the wait begins between two bursts
    of packets. But changes should fall into all parts of a burst equally often. The sum of two random waits
    is better for this than one random wait. In a measurement, one fifth of a burst still got 1.5 times its
    share of the changes (docs/measuring.md).
    """
    if since_last_ns is not None and since_last_ns < TOGETHER_NS:
        return LEAST_WAIT_NS
    return rng.randrange(LEAST_WAIT_NS, MOST_WAIT_NS) + rng.randrange(LEAST_WAIT_NS, MOST_WAIT_NS)


@dataclass(frozen=True, slots=True)
class Made:
    """When calls were made (CLOCK_MONOTONIC, ns), and whether all of them returned 0 or more."""

    before_ns: int
    after_ns: int
    complete: bool


def make_at_a_moment(wait_ns: int, cpu: int | None, calls: Sequence[Callable[[], int]]) -> Made:
    """Wait as `at_its_moment` does, then make the calls until a call returns less than 0.

    The thread gives up its priority immediately after the calls, so that it holds the CPU only for the calls.
    """
    usable = os.sched_getaffinity(0)
    clock, set_scheduler, complete = time.monotonic_ns, os.sched_setscheduler, True
    first, back = os.sched_param(ABOVE_AGENTS), os.sched_param(0)
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        with contextlib.suppress(PermissionError):
            set_scheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, first)
        time.sleep(wait_ns / 1e9)
        before_ns = clock()
        for call in calls:
            if call() < 0:
                complete = False
                break
        after_ns = clock()
        set_scheduler(0, os.SCHED_OTHER, back)
    finally:
        os.sched_setaffinity(0, usable)
    return Made(before_ns, after_ns, complete)


@contextmanager
def at_its_moment(wait_ns: int, cpu: int | None) -> Iterator[None]:
    """Wait. Then run the body of the ``with`` on ``cpu`` (None: any CPU), with priority over the NICs.

    Without the wait, the moment would depend on the NICs. A ready thread gets a CPU only when the NIC's
    process is idle, so a fault would always fall into an idle time. The thread uses no CPU while it waits.
    """
    usable = os.sched_getaffinity(0)
    try:
        if cpu is not None:
            os.sched_setaffinity(0, {cpu})
        with before_others(ABOVE_AGENTS):
            time.sleep(wait_ns / 1e9)
            yield
    finally:
        os.sched_setaffinity(0, usable)
