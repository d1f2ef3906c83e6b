"""What ``mrclab perf`` measures, as jobs that post writes and time their completions."""

from __future__ import annotations

import time
from typing import Any, Protocol

from hosts.nic.device import Device
from hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status
from hosts.streams.stream import RemoteRegion


class PerfError(RuntimeError):
    """A measurement that could not be made: a write failed."""


class Job(Protocol):
    """Something that is measured."""

    def start(self) -> None:
        """Posts the first work."""

    def on_event(self, event: Event) -> None:
        """Takes a completion, and posts what follows from it."""

    def result(self) -> dict[str, Any] | None:
        """The answer to the command, once the job is over."""


class Nic:
    """What jobs work with: a device, its connected queue pairs and the peer's memory."""

    def __init__(self, device: Device, qpns: list[int], buffer: bytearray) -> None:
        self.device = device
        self.qpns = qpns
        self.buffer = memoryview(buffer)
        self.remote = RemoteRegion(0, 0, 0)

    def post(self, qpn: int, size: int, imm: int | None = None) -> None:
        """Posts a write of the buffer's first bytes."""
        remote = self.remote
        self.device.endpoint.post_write(qpn, 0, self.buffer[:size], remote.address, remote.rkey, imm)


def _check(event: SendCompleted) -> None:
    if event.status is not Status.SUCCESS:
        raise PerfError(f"a write ended with '{event.status.value}'")


class Bandwidth:
    """Keeps up to ``depth`` writes in flight on each queue pair until each has done ``iterations``.

    With ``duration_s`` they go on for that long instead.
    """

    def __init__(
        self, nic: Nic, size: int, iterations: int, depth: int, duration_s: float | None = None
    ) -> None:
        self._nic = nic
        self._size = size
        self._to_post = dict.fromkeys(nic.qpns, iterations)
        self._depth = depth
        self._duration_ns = None if duration_s is None else round(duration_s * 1e9)
        self._in_flight = 0
        self._started_ns = 0
        self._completed_ns: list[int] = []

    def start(self) -> None:
        """Posts the first writes of each queue pair, in turns."""
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
        """Posts another write for each that is done."""
        if isinstance(event, SendCompleted):
            _check(event)
            elapsed_ns = time.monotonic_ns() - self._started_ns
            self._completed_ns.append(elapsed_ns)
            self._in_flight -= 1
            self._post(event.qpn, elapsed_ns)

    def result(self) -> dict[str, Any] | None:
        """When each write completed, from the first post on."""
        return {"completed_ns": self._completed_ns} if not self._in_flight else None


class Latency:
    """One write at a time on the first queue pair.

    Until its acknowledgement is here or, with ``ping``, until the peer's answering write is.
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
        """Posts the first write."""
        self._posted_ns = time.monotonic_ns()
        self._nic.post(self._nic.qpns[0], self._size, self._imm)

    def on_event(self, event: Event) -> None:
        """Times what was awaited and posts the next."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, self._awaited):
            self._durations_ns.append(time.monotonic_ns() - self._posted_ns)
            if len(self._durations_ns) < self._samples:
                self.start()

    def result(self) -> dict[str, Any] | None:
        """How long each took, without the first ones."""
        done = len(self._durations_ns) == self._samples
        return {"durations_ns": self._durations_ns[self._warm_up :]} if done else None


class Pong:
    """The far end of pings: answers every write with one of its own, until another job comes."""

    def __init__(self, nic: Nic, size: int) -> None:
        self._nic = nic
        self._size = size

    def start(self) -> None:
        """Nothing to do before the first ping."""

    def on_event(self, event: Event) -> None:
        """Writes back."""
        if isinstance(event, SendCompleted):
            _check(event)
        if isinstance(event, ReceiveCompleted):
            self._nic.post(self._nic.qpns[0], self._size, 1)

    def result(self) -> dict[str, Any] | None:
        """Never over."""
        return None
