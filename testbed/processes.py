"""Processes: which are ours, and their end."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from linux.namespaces import Identity
from testbed.names import RUN_VARIABLE, Names

GRACE_S = 2.0
EXEC_TRIES = 20
KTHREADD = 2


@dataclass(frozen=True, slots=True)
class Process:
    """A process that is not mistaken for a later one of the same pid: ``start`` is in clock ticks since
    boot."""

    pid: int
    start: int
    what: str = ""

    @classmethod
    def of(cls, pid: int, what: str = "") -> Process:
        """The running process of that pid. Raises ProcessLookupError."""
        start = start_time(pid)
        if start is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, start, what)

    @property
    def alive(self) -> bool:
        """Whether it runs (one that has ended and waits for its parent does not)."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.start and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name may hold spaces and brackets


def start_time(pid: int) -> int | None:
    """When a process began, in clock ticks since boot, or None where there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def ancestors(pid: int) -> set[int]:
    """A process, its parent, and so on up."""
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields is not None else 0
    return found


def run_id_of(pid: int) -> str | None:
    """The MRCLAB_RUN that a process was started with, or None."""
    key = f"{RUN_VARIABLE}=".encode()
    for entry in _environ(pid).split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode(errors="replace")
    return None


def _environ(pid: int) -> bytes:
    """A process's environment. For some microseconds of its exec it looks empty; then this asks again."""
    with suppress(OSError):
        for _ in range(EXEC_TRIES):
            if data := Path(f"/proc/{pid}/environ").read_bytes():
                return data
            fields = _stat(pid)
            if fields is None or KTHREADD in (pid, int(fields[1])):
                break  # gone, or the kernel's own, which has none
            os.sched_yield()
    return b""


def ours(names: Names, spaces: Iterable[Identity], run_id: str | None = None) -> Iterator[Process]:
    """The processes of a testbed: started with one of its run ids, or running inside its namespaces.

    With ``run_id`` only that run's count, besides those in the namespaces. Never the calling process or an
    ancestor of it, nor anything in another pid namespace: a container's testbed is the container's.
    """
    inside = set(spaces)
    spared = ancestors(os.getpid())
    here = os.stat("/proc/self/ns/pid")
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        pid = int(entry)
        try:
            start = start_time(pid)
            net, pids = os.stat(f"/proc/{pid}/ns/net"), os.stat(f"/proc/{pid}/ns/pid")
        except OSError:
            continue  # it has ended, or it is a zombie, which holds no namespace
        if start is None or (pids.st_dev, pids.st_ino) != (here.st_dev, here.st_ino):
            continue
        run = run_id_of(pid)
        marked = run is not None and (run == run_id if run_id else names.owns_run(run))
        if marked or Identity(net.st_dev, net.st_ino) in inside:
            yield Process(pid, start, _command(pid))


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def end(processes: Iterable[Process], grace_s: float = GRACE_S) -> list[Process]:
    """Ends processes: SIGTERM, SIGKILL to those still there after ``grace_s`` seconds, and waits until all
    are gone.

    Returns those that were there. Children of the caller are left for it to reap.
    """
    waiting: dict[int, Process] = {}
    try:
        for process in processes:
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                continue
            if (
                process.alive
            ):  # checked with the descriptor in hand, so the pid cannot change its meaning any more
                waiting[fd] = process
            else:
                os.close(fd)
        found = list(waiting.values())
        for number, patience in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            for fd in waiting:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            _await(waiting, patience)
        return found
    finally:
        for fd in waiting:
            os.close(fd)


def _await(waiting: dict[int, Process], patience_s: float) -> None:
    """Waits until all have ended, at most ``patience_s``; closes and drops those that have."""
    deadline = time.monotonic() + patience_s
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    while waiting:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        for fd, _ in poller.poll(left * 1000):
            poller.unregister(fd)
            os.close(fd)
            del waiting[fd]
