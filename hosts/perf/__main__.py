"""The measuring process of ``mrclab perf``: one NIC, some queue pairs, and one job at a time.

The process runs in a host's namespace (`mrclab.hosts.worker`). `mrclab.hosts.perf.client` sends it these
requests (->: content of the answer):

    open      open the NIC of a host of a fabric, with a transport and its options, and create queue pairs
              and memory                                            -> attributes, address, rkey
    connect   connect to the peer, given its answer to `open`
    calibrate measure the RTT of the idle network, for NSCC         -> the RTT
    write_bw  keep writes in flight on every queue pair             -> completion times; before the end, if
              `report_s` is given, the number of completed writes
    write_lat wait for the acknowledgement of each write            -> the duration of each write
    ping      wait for the peer's answering write after each write  -> the duration of each pair of writes
    pong      answer each write of the peer with a write, from now on
    idle      report the NIC's counters

The NIC keeps working after a job, so that the peer can finish its job.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Mapping
from typing import Any

from mrclab.hosts.host_nic import HostNic
from mrclab.hosts.perf.jobs import Bandwidth, Job, Latency, Nic, PerfError, Pong
from mrclab.hosts.streams.stream import RemoteRegion
from mrclab.hosts.worker import Answer, Operation, freeze_heap, resident_bytes, run
from mrclab.linux.requests import Request
from mrclab.linux.scheduling import take_cpu


class PerfAgent:
    """One NIC with queue pairs, and the job that runs over them."""

    def __init__(self) -> None:
        self._nic: Nic | None = None
        self._rss_bytes = 0
        self._job: Job | None = None
        self.operations: Mapping[str, Operation] = {
            "open": self._open,
            "connect": self._connect,
            "calibrate": self._calibrate,
            "write_bw": lambda r: self._begin(
                Bandwidth(
                    self.nic, r["size"], r["iterations"], r["depth"], r["duration_s"], r.get("report_s")
                )
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
        """Return the NIC. Raise RuntimeError if it is not open yet."""
        if self._nic is None:
            raise RuntimeError("'open' comes first")
        return self._nic

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Do the NIC's work. Return whether a request has arrived, and the job's result, report or None.

        If the job failed, end it and raise PerfError.
        """
        if self._nic is None:
            return True, None
        device, profiles = self._nic.device, self._nic.host_nic.profiles
        readable = device.turn(None, (control_fd, *profiles.descriptors()))
        requested = control_fd in readable
        if readable:
            profiles.serve(readable)
        job = self._job
        try:
            for event in device.events():
                profiles.observe(event)
                if job is not None:
                    job.on_event(event)
        except PerfError:
            self._job = None
            raise
        if job is None:
            return requested, None
        result = job.result()
        if result is None:
            return requested, job.progress()
        self._job = None
        return requested, result

    def close(self) -> None:
        """Do nothing: the NIC closes when the process ends."""

    def _begin(self, job: Job) -> Answer:
        self._job = job
        job.start()
        return None

    def _pong(self, request: Request) -> dict[str, Any]:
        # Start the job before this answer is sent, because the peer sends its first write after the answer.
        self._job = Pong(self.nic, request["size"])
        return {}

    def _open(self, request: Request) -> dict[str, Any]:
        take_cpu(request["cpu"])
        opened = HostNic.open(request)
        buffer = bytearray(max(1, request["bytes"]))
        region = opened.device.endpoint.register_memory(bytearray(max(1, request["bytes"])))
        gc.collect()
        self._rss_bytes = resident_bytes()
        qps = opened.create_qps(request["qps"])
        self._nic = Nic(opened, buffer)
        return {"host": opened.host, "address": region.address, "rkey": region.rkey, "qps": qps}

    def _connect(self, request: Request) -> dict[str, Any]:
        nic, peer = self.nic, request["peer"]
        for qpn, attributes in zip(nic.qpns, peer["qps"], strict=True):
            nic.host_nic.connect(qpn, peer["host"], attributes)
            nic.host_nic.deny(qpn, request.get("denied", ()))
        nic.remote = RemoteRegion(peer["address"], peer["rkey"], len(nic.buffer))
        freeze_heap()
        return {}

    def _calibrate(self, _request: Request) -> dict[str, Any]:
        # All queue pairs to a peer share one congestion control. So one queue pair is enough.
        return {"base_rtt_ns": self.nic.host_nic.calibrate(self.nic.qpns[0])}

    def _idle(self, _request: Request) -> dict[str, Any]:
        endpoint = self.nic.device.endpoint
        gc.collect()
        counters = [endpoint.qp_counters(qpn) for qpn in self.nic.qpns]
        return {
            "sent": sum(c.sent for c in counters),
            "retransmitted": sum(c.retransmitted for c in counters),
            "socket_drops": self.nic.device.drops(),
            "qp_bytes": (resident_bytes() - self._rss_bytes) / len(counters),
            "cpu_s": sum(resource.getrusage(resource.RUSAGE_SELF)[:2]),
        }


def main() -> None:
    """Run the measuring process."""
    run(PerfAgent())


if __name__ == "__main__":
    main()
