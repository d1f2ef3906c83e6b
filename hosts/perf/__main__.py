"""The measuring process of ``mrclab perf``: one NIC, some queue pairs, and a job at a time.

It runs in a host's namespace (`mrclab.hosts.worker`) and takes these requests, which
`mrclab.hosts.perf.client` sends (-> content of the answer):

    open      open the NIC of a host of a fabric, with a transport and its options, and create queue pairs
              and memory                                            -> attributes, address, rkey
    connect   connect to the peer, given its answer to `open`
    calibrate measure the RTT of the idle network, for NSCC         -> that RTT
    write_bw  keep writes in flight on every queue pair             -> completion times; before them, if
              `report_s` is given, how many are done so far
    write_lat write once at a time, until it is acknowledged        -> the duration of each
    ping      write once at a time, until the peer has written back -> the duration of each
    pong      answer each write of the peer with a write, from now on
    idle      report the NIC's counters

The NIC keeps working after a job, so that the peer can finish its own.
"""

from __future__ import annotations

import gc
import resource
from collections.abc import Mapping
from typing import Any

from mrclab.hosts.clustermapper.denylist import apply_denylist
from mrclab.hosts.nic.base_rtt import calibrate
from mrclab.hosts.nic.device import Device
from mrclab.hosts.nic.routes import paths_for
from mrclab.hosts.perf.jobs import Bandwidth, Job, Latency, Nic, PerfError, Pong
from mrclab.hosts.profile_socket import HostProfiles
from mrclab.hosts.streams.stream import RemoteRegion
from mrclab.hosts.transports import make_config, random_of
from mrclab.hosts.transports.kinds import attributes_from_dict, attributes_to_dict
from mrclab.hosts.worker import Answer, Operation, freeze_heap, resident_bytes, run
from mrclab.linux.requests import Request
from mrclab.linux.scheduling import take_cpu
from mrclab.topologies import Fabric, fabric_from_text


class PerfAgent:
    """One NIC with queue pairs, and the job that runs over them."""

    def __init__(self) -> None:
        self._fabric: Fabric | None = None
        self._nic: Nic | None = None
        self._profiles: HostProfiles | None = None
        self._host = ""
        self._peer = ""
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
        """The NIC. Raise RuntimeError before it is opened."""
        if self._nic is None:
            raise RuntimeError("'open' comes first")
        return self._nic

    def turn(self, control_fd: int) -> tuple[bool, Answer]:
        """Do the NIC's work; return if a request is here, and the result of a job that is over.

        Raise PerfError if the job failed, and drop the job.
        """
        if self._nic is None or self._profiles is None:
            return True, None
        device, profiles = self._nic.device, self._profiles
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
        """Do nothing: the NIC closes with the process."""

    def _begin(self, job: Job) -> Answer:
        self._job = job
        job.start()
        return None

    def _pong(self, request: Request) -> dict[str, Any]:
        # Answered at once, before the peer sends its first ping: the job must be in place by then.
        self._job = Pong(self.nic, request["size"])
        return {}

    def _open(self, request: Request) -> dict[str, Any]:
        take_cpu(request["cpu"])
        self._fabric = fabric_from_text(request["topology_yaml"])
        self._host = request["host"]
        device = Device.open(
            self._fabric,
            self._host,
            make_config(request["transport"], self._fabric, self._host, request["config"]),
            random_of(request["seed"], self._host),
        )
        self._profiles = HostProfiles(device, self._host)
        buffer = bytearray(max(1, request["bytes"]))
        region = device.endpoint.register_memory(bytearray(max(1, request["bytes"])))
        gc.collect()
        self._rss_bytes = resident_bytes()
        self._nic = Nic(device, [device.endpoint.create_qp() for _ in range(request["qps"])], buffer)
        return {
            "host": self._host,
            "address": region.address,
            "rkey": region.rkey,
            "qps": [attributes_to_dict(device.endpoint.local_attributes(q)) for q in self._nic.qpns],
        }

    def _connect(self, request: Request) -> dict[str, Any]:
        if self._fabric is None or self._profiles is None:
            raise RuntimeError("'open' comes first")
        peer = request["peer"]
        endpoint = self.nic.device.endpoint
        paths = paths_for(endpoint, self._fabric, self._host, peer["host"])
        for qpn, attributes in zip(self.nic.qpns, peer["qps"], strict=True):
            self._profiles.connect(qpn, attributes_from_dict(attributes), paths)
            now = self.nic.device.now()
            apply_denylist(
                endpoint, qpn, self._fabric, self._host, peer["host"], request.get("denied", ()), now
            )
        self._peer = peer["host"]
        self.nic.remote = RemoteRegion(peer["address"], peer["rkey"], len(self.nic.buffer))
        freeze_heap()
        return {}

    def _calibrate(self, _request: Request) -> dict[str, Any]:
        if self._fabric is None or not self._peer:
            raise RuntimeError("'connect' comes first")
        # All queue pairs to a peer share one controller, so one is enough.
        qpn = self.nic.qpns[0]
        return {"base_rtt_ns": calibrate(self.nic.device, qpn, self._fabric, self._host, self._peer)}

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
