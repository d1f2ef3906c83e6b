"""What ``mrclab perf`` measures, as jobs that post writes and time their completions."""

from __future__ import annotations

import time
from typing import Any, Protocol

from mrclab.hosts.host_nic import HostNic
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.streams.stream import RemoteRegion


class PerfError(RuntimeError):
    """A measurement failed because a write failed."""


class Job(Protocol):
    """A measurement."""

    def start(self) -> None:
        """Post the first work."""

    def on_event(self, event: Event) -> None:
        """Process a completion and post the next work."""

    def result(self) -> dict[str, Any] | None:
        """Return the answer to the request once the job is over, else None."""

    def progress(self) -> dict[str, Any] | None:
        """Return an interim report, if one is due."""


class _Silent:
    """A job that reports nothing before its end."""

    def progress(self) -> dict[str, Any] | None:
        """Return None."""
        return None


class Nic:
    """What jobs use: a device, its connected queue pairs and the peer's memory."""

    def __init__(self, of_host: HostNic, buffer: bytearray) -> None:
        self.of_host = of_host
        self.device = of_host.device
        self.qpns = of_host.qpns
        self.buffer = memoryview(buffer)
        self.remote = RemoteRegion(0, 0, 0)

    def post(self, qpn: int, size: int, imm: int | None = None) -> None:
        """Post a write of the buffer's first bytes."""
        remote = self.remote
        self.device.endpoint.post_write(qpn, 0, self.buffer[:size], remote.address, remote.rkey, imm)


def _check(event: SendCompleted) -> None:
    if event.status is not Status.SUCCESS:
        raise PerfError(f"a write ended with '{event.status.value}'")


class Bandwidth:
    """Up to ``depth`` writes in flight on each queue pair, until each has done ``iterations``.

    With ``duration_s`` writes continue for that long instead. With ``report_s`` it reports at that interval
    how many are done.
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
        """Post the first writes of each queue pair, in turns."""
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
        """Post another write for each that is done."""
        if isinstance(event, SendCompleted):
            _check(event)
            elapsed_ns = time.monotonic_ns() - self._started_ns
            self._completed_ns.append(elapsed_ns)
            self._in_flight -= 1
            self._post(event.qpn, elapsed_ns)

    def progress(self) -> dict[str, Any] | None:
        """Return how many writes are done after how long, once in each interval."""
        if self._report_ns is None or not self._completed_ns:
            return None
        elapsed_ns = self._completed_ns[-1]
        if elapsed_ns < self._told_ns + self._report_ns:
            return None
        self._told_ns = elapsed_ns
        return {"elapsed_ns": elapsed_ns, "completed": len(self._completed_ns)}

    def result(self) -> dict[str, Any] | None:
        """Return when each write completed, in ns from the first post."""
        return {"completed_ns": self._completed_ns} if not self._in_flight else None


class Latency(_Silent):
    """One write at a time on the first queue pair.

    A write ends with its acknowledgement or, with ``ping``, with the peer's answering write.
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
        """Take the time of the awaited event and post the next write."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, self._awaited):
            self._durations_ns.append(time.monotonic_ns() - self._posted_ns)
            if len(self._durations_ns) < self._samples:
                self.start()

    def result(self) -> dict[str, Any] | None:
        """Return the duration of each write in ns, without the warm-up."""
        done = len(self._durations_ns) == self._samples
        return {"durations_ns": self._durations_ns[self._warm_up :]} if done else None


class Pong(_Silent):
    """The far end of pings: it answers every write with a write, until another job starts."""

    def __init__(self, nic: Nic, size: int) -> None:
        self._nic = nic
        self._size = size

    def start(self) -> None:
        """Do nothing before the first ping."""

    def on_event(self, event: Event) -> None:
        """Answer a write with a write."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, ReceiveCompleted):
            self._nic.post(self._nic.qpns[0], self._size, 1)

    def result(self) -> dict[str, Any] | None:
        """Return None: this job never ends by itself."""
        return None
