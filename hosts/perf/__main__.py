"""The measuring process of ``mrclab perf``: one NIC, some queue pairs, and a job at a time.

Started in a host's namespace as ``python -m hosts.perf CONTROL_FD``; whoever measures commands it over that
socket, a JSON object per line each way, answered in order (see ``hosts.perf.client``):

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
from collections.abc import Callable, Mapping
from typing import Any

from hosts.attributes import attributes_from_dict, attributes_to_dict
from hosts.clustermapper.denylist import apply_denylist
from hosts.commands import Answer, serve
from hosts.nic.base_rtt import calibrate
from hosts.nic.device import Device
from hosts.nic.routes import remote_paths
from hosts.perf.jobs import Bandwidth, Job, Latency, Nic, PerfError, Pong
from hosts.streams.stream import RemoteRegion
from hosts.transports import make_config
from linux.scheduling import take_cpu
from topologies import Fabric, build_fabric


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
