"""The measurements of ``mrclab perf``: jobs that post writes and measure the times of their completions."""

from __future__ import annotations

import time
from typing import Any, Protocol

from mrclab.hosts.host_nic import HostNic
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.streams.stream import RemoteRegion


class PerfError(RuntimeError):
    """A measurement failed because a write failed."""


class Job(Protocol):
    """The interface of a measurement."""

    def start(self) -> None:
        """Post the first writes, if the job has any to post."""

    def on_event(self, event: Event) -> None:
        """Process an event of the NIC, and post the next write if the job needs one."""

    def result(self) -> dict[str, Any] | None:
        """Return the answer to the request if the job is over; otherwise return None."""

    def progress(self) -> dict[str, Any] | None:
        """Return an interim report if it is due; otherwise return None."""


class _Silent:
    """A job that reports nothing before its end."""

    def progress(self) -> dict[str, Any] | None:
        """Return None, because this job reports nothing before its end."""
        return None


class Nic:
    """The NIC that jobs use: a device, its connected queue pairs, and the peer's memory."""

    def __init__(self, host_nic: HostNic, buffer: bytearray) -> None:
        self.host_nic = host_nic
        self.device = host_nic.device
        self.qpns = host_nic.qpns
        self.buffer = memoryview(buffer)
        self.remote = RemoteRegion(0, 0, 0)

    def post(self, qpn: int, size: int, imm: int | None = None) -> None:
        """Post a write of the first ``size`` bytes of the buffer."""
        remote = self.remote
        self.device.endpoint.post_write(qpn, 0, self.buffer[:size], remote.address, remote.rkey, imm)


def _check(event: SendCompleted) -> None:
    if event.status is not Status.SUCCESS:
        raise PerfError(f"a write ended with '{event.status.value}'")


class Bandwidth:
    """Measure bandwidth: keep up to ``depth`` writes in flight on each queue pair.

    Each queue pair does ``iterations`` writes. If ``duration_s`` is given, writes continue for this time
    instead. If ``report_s`` is given, the job reports the number of completed writes at this interval.
    """

    def __init__(
        self,
        nic: Nic,
        size: int,
        iterations: int,
        depth: int,
        duration_s: float | None = None,
        report_s: float | None = None,
    ) -> None:
        self._nic = nic
        self._size = size
        self._to_post = dict.fromkeys(nic.qpns, iterations)
        self._depth = depth
        self._duration_ns = None if duration_s is None else round(duration_s * 1e9)
        self._report_ns = None if report_s is None else round(report_s * 1e9)
        self._told_ns = 0
        self._in_flight = 0
        self._started_ns = 0
        self._completed_ns: list[int] = []

    def start(self) -> None:
        """Post the first ``depth`` writes on each queue pair, round robin."""
        self._started_ns = time.monotonic_ns()
        for _ in range(self._depth):
            for qpn in self._nic.qpns:
                self._post(qpn, 0)

    def _post(self, qpn: int, elapsed_ns: int) -> None:
        if self._duration_ns is not None:
            if elapsed_ns >= self._duration_ns:
                return
        elif not self._to_post[qpn]:
            return
        self._to_post[qpn] -= 1
        self._in_flight += 1
        self._nic.post(qpn, self._size)

    def on_event(self, event: Event) -> None:
        """Post another write for each write that is complete."""
        if isinstance(event, SendCompleted):
            _check(event)
            elapsed_ns = time.monotonic_ns() - self._started_ns
            self._completed_ns.append(elapsed_ns)
            self._in_flight -= 1
            self._post(event.qpn, elapsed_ns)

    def progress(self) -> dict[str, Any] | None:
        """Return the elapsed time and the number of completed writes, once per interval; otherwise None."""
        if self._report_ns is None or not self._completed_ns:
            return None
        elapsed_ns = self._completed_ns[-1]
        if elapsed_ns < self._told_ns + self._report_ns:
            return None
        self._told_ns = elapsed_ns
        return {"elapsed_ns": elapsed_ns, "completed": len(self._completed_ns)}

    def result(self) -> dict[str, Any] | None:
        """Return the time from ``start`` to each completion, ns, or None if writes are in flight."""
        return {"completed_ns": self._completed_ns} if not self._in_flight else None


class Latency(_Silent):
    """Measure latency: one write at a time on the first queue pair.

    A measured time ends when the write is acknowledged. With ``ping``, the time ends when the peer's
    answering write arrives.
    """

    def __init__(self, nic: Nic, size: int, iterations: int, warm_up: int, ping: bool) -> None:
        self._nic = nic
        self._size = size
        self._samples = iterations + warm_up
        self._warm_up = warm_up
        self._awaited = ReceiveCompleted if ping else SendCompleted
        self._imm = 1 if ping else None
        self._posted_ns = 0
        self._durations_ns: list[int] = []

    def start(self) -> None:
        """Post the first write."""
        self._posted_ns = time.monotonic_ns()
        self._nic.post(self._nic.qpns[0], self._size, self._imm)

    def on_event(self, event: Event) -> None:
        """If the event ends a write, store the duration of this write and post the next one."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, self._awaited):
            self._durations_ns.append(time.monotonic_ns() - self._posted_ns)
            if len(self._durations_ns) < self._samples:
                self.start()

    def result(self) -> dict[str, Any] | None:
        """Return the durations of the writes after the warm-up, ns; None if the job is not over."""
        done = len(self._durations_ns) == self._samples
        return {"durations_ns": self._durations_ns[self._warm_up :]} if done else None


class Pong(_Silent):
    """The peer's job in a ping test: it answers every write with a write, until another job starts."""

    def __init__(self, nic: Nic, size: int) -> None:
        self._nic = nic
        self._size = size

    def start(self) -> None:
        """Do nothing: the other host sends the first write."""

    def on_event(self, event: Event) -> None:
        """Answer a write with a write."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, ReceiveCompleted):
            self._nic.post(self._nic.qpns[0], self._size, 1)

    def result(self) -> dict[str, Any] | None:
        """Return None: this job only ends when another job starts."""
        return None
