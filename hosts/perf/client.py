"""The client of ``mrclab.hosts.perf``: it starts a process on each of two hosts and measures between them."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from mrclab.hosts.transports import DEFAULT
from mrclab.hosts.worker import RemoteAgent, Spawn
from mrclab.topologies import Fabric, fabric_text

READY_TIMEOUT_S = 60.0
LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class BandwidthResult:
    """The bandwidth at one message size, in the columns of perftest. 1 MiB is 2^20 bytes."""

    bytes: int
    iterations: int
    """Number of writes, over all queue pairs and directions."""
    bw_peak_mib_s: float
    """Highest bandwidth in any period in which a tenth of the writes completed."""
    bw_average_mib_s: float
    msg_rate_mpps: float
    """Messages per second, in millions."""
    seconds: float


@dataclass(frozen=True, slots=True)
class LatencyResult:
    """The latency for one message size, us. The fields are the columns of perftest's output."""

    bytes: int
    iterations: int
    t_min_us: float
    t_max_us: float
    t_typical_us: float
    """The median, us."""
    t_avg_us: float
    t_stdev_us: float
    p99_us: float
    p99_9_us: float
    all_us: tuple[float, ...] = ()
    """All durations, us, sorted."""


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that is at least as large as this share (0 to 1) of the sorted values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency_result(size: int, durations_ns: Sequence[int], divisor: int) -> LatencyResult:
    """Return the result for these durations. Each duration is first divided by ``divisor``."""
    times = sorted(duration / 1e3 / divisor for duration in durations_ns)
    return LatencyResult(
        bytes=size,
        iterations=len(times),
        t_min_us=times[0],
        t_max_us=times[-1],
        t_typical_us=statistics.median(times),
        t_avg_us=statistics.fmean(times),
        t_stdev_us=statistics.pstdev(times),
        p99_us=percentile(times, 0.99),
        p99_9_us=percentile(times, 0.999),
        all_us=tuple(times),
    )


def bandwidth_result(size: int, directions: Sequence[Sequence[int]]) -> BandwidthResult:
    """Return the bandwidth. ``directions`` has the completion times of the writes in each direction.

    The times are in ns from the moment when this direction's sender posted its first writes.
    """
    count = sum(len(times) for times in directions)
    elapsed_ns = max(times[-1] for times in directions)
    window = max(1, min(len(times) for times in directions) // 10)
    peak = sum(_peak_per_ns(times, window) for times in directions)
    mib_s = size * 1e9 / (1 << 20)
    return BandwidthResult(
        bytes=size,
        iterations=count,
        bw_peak_mib_s=peak * mib_s,
        bw_average_mib_s=count / elapsed_ns * mib_s,
        msg_rate_mpps=count / elapsed_ns * 1e3,
        seconds=elapsed_ns / 1e9,
    )


def _peak_per_ns(times: Sequence[int], window: int) -> float:
    starts = (0, *times)
    return max(window / max(1, times[i + window - 1] - starts[i]) for i in range(len(times) - window + 1))


class PerfPair:
    """Two connected processes that measure, one on each host. A ``with`` block ends them on exit."""

    def __init__(
        self,
        fabric: Fabric,
        hosts: tuple[str, str],
        spawn: Callable[[str], Spawn],
        *,
        qps: int = 1,
        region_bytes: int = 1,
        transport: str = DEFAULT,
        config: Mapping[str, Any] | None = None,
        calibrate: bool = False,
        pin: bool = True,
        denied: Collection[str] = (),
    ) -> None:
        """Start and connect the two processes.

        ``spawn`` returns a host's Spawn. Nothing is sent over ``denied`` links. With ``calibrate``, both ends
        first measure the RTT of the idle network, for NSCC. With ``pin``, each process stays on one CPU; if
        there are two CPUs or more, the processes have different CPUs.
        """
        cpus, text = sorted(os.sched_getaffinity(0)), fabric_text(fabric)
        self.ends: list[RemoteAgent] = []
        self.base_rtt_ns: int | None = None
        try:
            for number, host in enumerate(hosts):
                self.ends.append(
                    RemoteAgent(host, spawn(host), stderr=subprocess.DEVNULL, module="mrclab.hosts.perf")
                )
                self.ends[-1].send(
                    "open",
                    topology_yaml=text,
                    host=host,
                    seed=number,
                    transport=transport,
                    config=dict(config or {}),
                    qps=qps,
                    bytes=region_bytes,
                    cpu=cpus[number % len(cpus)] if pin else None,
                )
            opened = [end.receive(READY_TIMEOUT_S) for end in self.ends]
            for end, peer in zip(self.ends, reversed(opened), strict=True):
                end.call("connect", peer=peer, denied=sorted(denied))
            if calibrate:
                self.base_rtt_ns = max(int(end.call("calibrate")["base_rtt_ns"]) for end in self.ends)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PerfPair:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End both processes."""
        for end in self.ends:
            end.close(LEAVE_S)  # short, because a process does not read its socket during a job

    def bandwidth(
        self,
        size: int,
        iterations: int,
        depth: int,
        *,
        both_ways: bool = False,
        duration_s: float | None = None,
        report_s: float | None = None,
        told: Callable[[int, int], None] = lambda elapsed_ns, completed: None,
    ) -> BandwidthResult:
        """Measure writes of this size: ``iterations`` on each queue pair, ``depth`` of them in flight.

        If ``duration_s`` is given, writes continue for this time instead. If ``report_s`` is given, ``told``
        is called at this interval. Its arguments are the time since the start (ns) and the number of writes
        that the first host has completed.
        """
        active = self.ends if both_ways else self.ends[:1]
        asked = {"size": size, "iterations": iterations, "depth": depth, "duration_s": duration_s}
        for number, end in enumerate(active):
            end.send("write_bw", **asked, report_s=None if number else report_s)
        answer = active[0].receive(None)
        while "completed_ns" not in answer:
            told(answer["elapsed_ns"], answer["completed"])
            answer = active[0].receive(None)
        others = [end.receive(None)["completed_ns"] for end in active[1:]]
        return bandwidth_result(size, [answer["completed_ns"], *others])

    def ping_pong(self, size: int, iterations: int, warm_up: int) -> LatencyResult:
        """Measure one-way latency as perftest does: half the time of a write and the answering write."""
        self.ends[1].call("pong", size=size)
        self.ends[0].send("ping", size=size, iterations=iterations, warm_up=warm_up)
        return latency_result(size, self.ends[0].receive(None)["durations_ns"], 2)

    def completion(self, size: int, iterations: int, warm_up: int) -> LatencyResult:
        """Measure the time from posting a write until its acknowledgement has arrived."""
        self.ends[0].send("write_lat", size=size, iterations=iterations, warm_up=warm_up)
        return latency_result(size, self.ends[0].receive(None)["durations_ns"], 1)
