"""The measuring process of ``mrclab perf``: one NIC, some queue pairs, and a job at a time.

Started in a host's namespace as ``python -m hosts.perf CONTROL_FD``; whoever measures commands it over that
socket, a JSON object per line each way, answered in order (see ``hosts.perf_client``):

    open      which host of which fabric, which transport with which options, how many queue pairs, how much
              memory                                                      -> attributes, address, rkey
    connect   the peer's answer to `open`
    calibrate measure the RTT of the idle network, for NSCC                     -> that RTT
    write_bw  keep writes in flight on every queue pair                         -> completion times
    write_lat one write at a time, until it is acknowledged                     -> a duration each
    ping      one write at a time, until the peer has written back              -> a duration each
    pong      write back whatever comes, from the answer to this command on
    idle      what the NIC counted

While a job runs and after it the NIC keeps working, so that the other end can finish its own.
"""

from __future__ import annotations

import gc
import logging
import random
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from hosts.attributes import attributes_from_dict, attributes_to_dict
from hosts.base_rtt import calibrate
from hosts.clustermapper.denylist import apply_denylist
from hosts.commands import Answer, serve
from hosts.device import Device
from hosts.mrc.events import Event, ReceiveCompleted, SendCompleted, Status
from hosts.routes import remote_paths
from hosts.stream import RemoteRegion
from hosts.transports import make_config
from linux.scheduling import take_cpu
from topologies import Fabric, build_fabric


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


class PerfAgent:
    """Carries out the commands of one measurement."""

    def __init__(self) -> None:
        self._fabric: Fabric | None = None
        self._nic: Nic | None = None
        self._host = ""
        self._peer = ""
        self._rss_bytes = 0
        self._job: Job | None = None
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
            "open": self._open,
            "connect": self._connect,
            "calibrate": self._calibrate,
            "write_bw": lambda r: self._begin(
                Bandwidth(self.nic, r["size"], r["iterations"], r["depth"], r["duration_s"])
            ),
            "write_lat": lambda r: self._begin(
                Latency(self.nic, r["size"], r["iterations"], r["warm_up"], ping=False)
            ),
            "ping": lambda r: self._begin(
                Latency(self.nic, r["size"], r["iterations"], r["warm_up"], ping=True)
            ),
            "pong": self._pong,
            "idle": self._idle,
        }

    @property
    def nic(self) -> Nic:
        """The NIC. Raises RuntimeError before it is opened."""
        if self._nic is None:
            raise RuntimeError("'open' comes first")
        return self._nic

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Carries out a command; None where its answer is to come later, from ``turn``."""
        return self._operations[request["do"]](request)

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Has the NIC work a little. Returns whether a command has come, and the answer of a job now over.

        Raises PerfError where the job failed; it is forgotten then.
        """
        if self._nic is None:
            return True, None
        device = self._nic.device
        commanded = bool(device.turn(None, (control_fd,)))
        job = self._job
        try:
            for event in device.events():
                if job is not None:
                    job.on_event(event)
        except PerfError:
            self._job = None
            raise
        if job is None:
            return commanded, None
        result = job.result()
        if result is not None:
            self._job = None
        return commanded, result

    def close(self) -> None:
        """Nothing is left to do when nobody commands any more."""

    def _begin(self, job: Job) -> dict[str, Any] | None:
        self._job = job
        job.start()
        return None

    def _pong(self, request: Mapping[str, Any]) -> dict[str, Any]:
        # Answered at once: a ping that came before the job would never be answered.
        self._job = Pong(self.nic, request["size"])
        return {}

    def _open(self, request: Mapping[str, Any]) -> dict[str, Any]:
        take_cpu(request["cpu"])
        self._fabric = build_fabric(request["topology_yaml"], request["topology"])
        self._host = request["host"]
        device = Device.open(
            self._fabric,
            self._host,
            make_config(request["transport"], self._fabric, self._host, request["config"]),
            random.Random(request["seed"]),
        )
        buffer = bytearray(max(1, request["bytes"]))
        region = device.endpoint.register_memory(bytearray(max(1, request["bytes"])))
        self._rss_bytes = _resident_bytes()
        self._nic = Nic(device, [device.endpoint.create_qp() for _ in range(request["qps"])], buffer)
        return {
            "host": self._host,
            "address": region.address,
            "rkey": region.rkey,
            "qps": [attributes_to_dict(device.endpoint.local_attributes(q)) for q in self._nic.qpns],
        }

    def _connect(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if self._fabric is None:
            raise RuntimeError("'open' comes first")
        peer = request["peer"]
        paths = remote_paths(self._fabric, self._host, peer["host"])
        for qpn, attributes in zip(self.nic.qpns, peer["qps"], strict=True):
            endpoint = self.nic.device.endpoint
            endpoint.connect(qpn, attributes_from_dict(attributes), paths)
            now = self.nic.device.now()
            apply_denylist(
                endpoint, qpn, self._fabric, self._host, peer["host"], request.get("denied", ()), now
            )
        self._peer = peer["host"]
        self.nic.remote = RemoteRegion(peer["address"], peer["rkey"], len(self.nic.buffer))
        gc.collect()
        gc.freeze()
        return {}

    def _calibrate(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        if self._fabric is None or not self._peer:
            raise RuntimeError("'connect' comes first")
        # All queue pairs to a peer share one controller, so one is enough.
        qpn = self.nic.qpns[0]
        return {"base_rtt_ns": calibrate(self.nic.device, qpn, self._fabric, self._host, self._peer)}

    def _idle(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        endpoint = self.nic.device.endpoint
        counters = [endpoint.qp_counters(qpn) for qpn in self.nic.qpns]
        return {
            "sent": sum(c.sent for c in counters),
            "retransmitted": sum(c.retransmitted for c in counters),
            "socket_drops": self.nic.device.drops(),
            "qp_bytes": (_resident_bytes() - self._rss_bytes) / len(counters),
            "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        }


def _resident_bytes() -> int:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def main() -> None:
    """Entry point of the process."""
    logging.basicConfig(level=logging.WARNING)
    serve(socket.socket(fileno=int(sys.argv[1])), PerfAgent())


if __name__ == "__main__":
    main()
