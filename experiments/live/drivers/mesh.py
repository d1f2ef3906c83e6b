"""The mesh: streams in both directions between all pairs of hosts. Every byte is checked.

Each stream numbers and hashes its messages and computes the expected contents of memory
(mrclab.hosts.streams.stream). At the end, both ends must have completed every message once and in order. The
responders must have placed exactly as many bytes as were posted. The receivers' whole memory must have the
expected contents.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from mrclab.experiments.live.disturbances import by_switch
from mrclab.experiments.live.drivers.driver import ANSWER_S, Agents, Setting, Steady, transport_config
from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.spec.placement import MeshStream, mesh_streams
from mrclab.experiments.spec.workloads import Mesh
from mrclab.hosts.agent_streams import AgentStreams
from mrclab.hosts.worker import AgentError, RemoteAgent

SAMPLE_NS = 5_000_000_000
SAY_S = 60
STUCK_S = 180.0
"""The mesh fails if a stream completes no message within this number of seconds, even on a busy machine."""
DRAIN_S = 120.0
LOG_BYTES = 32 << 20
"""The number of bytes of each agent's event log that are kept."""
GROWTH_BYTES = 8 << 20
"""An agent has a memory leak if its memory grows by more bytes than this in the last two thirds of a run."""
GROWTH_SAMPLES = 12
NEVER_ENDING = 25
MIB = 1 << 20


class MeshFailedError(Exception):
    """The mesh failed. The message says where and how."""


@dataclass
class Memory:
    """The resident memory of a process over time. A sample has the seconds since the start, and the bytes."""

    samples: list[tuple[float, int]] = field(default_factory=list)

    def steady(self) -> list[tuple[float, int]]:
        """Return the samples after the first third of the run, in which a process warms up."""
        if not self.samples:
            return []
        end = self.samples[-1][0]
        return [sample for sample in self.samples if sample[0] >= end / 3]

    @property
    def growth_bytes(self) -> int | None:
        """Return the growth of the memory in `steady`'s samples; None if there are too few samples.

        The growth is computed by linear regression.
        """
        steady = self.steady()
        if len(steady) < GROWTH_SAMPLES:
            return None
        n = len(steady)
        mean_t = sum(t for t, _ in steady) / n
        mean_b = sum(b for _, b in steady) / n
        spread = sum((t - mean_t) ** 2 for t, _ in steady)
        slope = sum((t - mean_t) * (b - mean_b) for t, b in steady) / spread
        return round(slope * (steady[-1][0] - steady[0][0]))

    def to_dict(self) -> dict[str, Any]:
        """Return the memory use in JSON types, with fewer than 400 samples, evenly spaced in time."""
        step = max(1, len(self.samples) // 200)
        return {
            "first_bytes": self.samples[0][1],
            "last_bytes": self.samples[-1][1],
            "max_bytes": max(b for _, b in self.samples),
            "growth_bytes": self.growth_bytes,
            "samples": [[round(t, 1), b] for t, b in self.samples[::step]],
        }


@dataclass
class Watched:
    """A stream, with the last status of its sender and its receiver."""

    stream: MeshStream
    sender: Mapping[str, Any] = field(default_factory=dict)
    receiver: Mapping[str, Any] = field(default_factory=dict)
    progressed_s: float = 0.0

    def check_end(self) -> str | None:
        """Return the error of a stream that should have completed all messages; None if there is no error."""
        sent, got = self.sender, self.receiver
        if not sent["drained"] or sent["posted"] != sent["completed"]:
            return f"{sent['completed']} of {sent['posted']} messages completed at the sender"
        if sent["posted"] != got["received"]:
            return f"{got['received']} of {sent['posted']} messages arrived"
        if sent["posted_bytes"] != got["bytes_delivered"]:
            return f"{got['bytes_delivered']} of {sent['posted_bytes']} bytes arrived"
        placed = got["counters"]["bytes_placed"]
        if placed != sent["posted_bytes"]:
            return f"{placed} bytes were placed for {sent['posted_bytes']} that were sent"
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the stream and its counters in JSON types."""
        return {
            "stream": self.stream.name,
            "messages": self.sender.get("posted", 0),
            "bytes": self.sender.get("posted_bytes", 0),
            "delivered_messages": self.receiver.get("received", 0),
            "delivered_bytes": self.receiver.get("bytes_delivered", 0),
            "sender": dict(self.sender.get("counters", {})),
            "receiver": dict(self.receiver.get("counters", {})),
        }


class MeshDriver(Steady):
    """The driver of the mesh: an agent on each host, and all streams between the agents."""

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.scenario.workload, Mesh)
        self._setting = setting
        self._workload = setting.scenario.workload
        self._agents = Agents(setting)
        hosts = setting.placement.hosts
        self.watched = [Watched(stream) for stream in mesh_streams(self._workload, hosts, setting.seed)]
        self.memory: dict[str, Memory] = {}
        self._drops: dict[str, Counter[str]] = {host: Counter() for host in hosts}
        """For each host, frames that the NIC refused (mostly because of a wrong ICRC) or its socket lost."""
        self._problem: str | None = None
        self._started = 0.0
        self._duration_s = 0.0
        self._said_s = 0.0
        self.pids: dict[str, int] = {}
        self.processes = len(hosts)
        self.over = False
        self.next_ns: int | None = None

    def __enter__(self) -> Self:
        self._agents.start()
        try:
            self._connect()
        except BaseException:
            self._agents.close()
            raise
        self.pids = {host: agent.pid for host, agent in self._agents.by_host.items()}
        return self

    def __exit__(self, *error: Any) -> None:
        self._agents.close()

    def priority(self) -> contextlib.AbstractContextManager[None]:
        """Return a context without effect, because the agents of a mesh have no high priority."""
        return contextlib.nullcontext()

    def _connect(self) -> None:
        agents = self._agents.by_host
        config = {
            "mtu_bytes": self._workload.payload_bytes,
            "timestamps": True,
            "exponential_retries": NEVER_ENDING,
        }
        options = {
            "config": transport_config(self._setting, config),
            "seed": self._setting.seed,
            "cpu": None,
            "realtime": False,
            "qps": (len(agents) - 1) * self._workload.qps,
        }
        opened = AgentStreams(agents, self._setting.running.fabric, lambda _host: options)
        self._agents.begin_logs(completions=False, keep_bytes=LOG_BYTES)
        streams = [watched.stream for watched in self.watched]
        for stream in streams:
            opened.prepare((stream.src, stream.qps[0]), (stream.dst, stream.qps[1]), stream.plan)
        for stream in streams:
            opened.connect((stream.src, stream.qps[0]), (stream.dst, stream.qps[1]))

    def start(self) -> int:
        """Start all streams; return the time at which the warm-up ends, ns."""
        for agent in self._agents.by_host.values():
            agent.call("start")
        self._started = time.monotonic()
        begin_ns = time.monotonic_ns()
        self.next_ns = begin_ns
        return begin_ns + self._setting.scenario.live_warmup_ns

    def descriptors(self) -> Collection[RemoteAgent]:
        """Return all agents: each agent may send an answer, or end."""
        return self._agents.by_host.values()

    def receive(self, ready: Sequence[object]) -> None:
        """Receive the agents' answers. If an agent has ended, the mesh has failed."""
        try:
            self._agents.receive(ready)
        except AgentError as error:
            self._problem, self.over = str(error), True

    def act(self, clock: Callable[[], int]) -> None:
        """If a sample is due, read the progress of every stream and the memory of every process."""
        if self.next_ns is None or self.next_ns > clock():
            return
        self.next_ns = max(self.next_ns + SAMPLE_NS, clock())
        if self._agents.waiting:
            return  # an agent takes no new request before it has answered
        try:
            self._sample()
        except (MeshFailedError, AgentError) as error:
            self._problem, self.over = str(error), True

    def _sample(self) -> None:
        now_s = time.monotonic() - self._started
        self._ask_states(now_s)
        pids = {**self.pids, "controller": os.getpid(), **by_switch(self._setting.running)}
        for name, pid in pids.items():
            self.memory.setdefault(name, Memory()).samples.append((now_s, resident_bytes(pid)))
        for watched in self.watched:
            if not watched.sender["drained"] and now_s - watched.progressed_s > STUCK_S:
                raise MeshFailedError(f"{watched.stream.name}: nothing completed for {STUCK_S:.0f} s")
        if now_s - self._said_s >= SAY_S or not self._said_s:
            self._said_s = max(now_s, 1e-9)
            delivered = sum(w.receiver["bytes_delivered"] for w in self.watched)
            rss = max(self.memory[host].samples[-1][1] for host in self.pids)
            self._setting.say(
                f"{now_s:6.0f} s: {delivered / 1e6:,.0f} MB checked, largest agent {rss / MIB:.0f} MiB"
            )

    def _ask_states(self, now_s: float) -> None:
        for watched in self.watched:
            (near, far), before = watched.stream.qps, watched.sender.get("completed")
            ends = []
            for host, qp in ((watched.stream.src, near), (watched.stream.dst, far)):
                agent = self._agents.by_host[host]
                agent.send("status", qp=qp)
                ends.append(agent.receive(ANSWER_S))
                self._drops[host].update(socket=ends[-1]["socket_drops"])
                self._drops[host]["frames"] = ends[-1]["frame_drops"]
            watched.sender, watched.receiver = ends
            if watched.sender["completed"] != before:
                watched.progressed_s = now_s
            for problem in (watched.sender["failed"], watched.receiver["problem"]):
                if problem is not None:
                    raise MeshFailedError(f"{watched.stream.name}: {problem}")

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when no agent has a path marked as broken."""
        self._agents.ask_restored(timeout_s)

    @property
    def restored(self) -> bool | None:
        """Return whether all paths are in use again; None while `ask_restored` still waits."""
        return self._agents.restored

    def stop(self) -> None:
        """Stop sending, wait until all packets have arrived, and check every byte."""
        self._duration_s = time.monotonic() - self._started
        if self._problem is not None:
            return
        try:
            self._check()
        except (MeshFailedError, AgentError) as error:
            self._problem = str(error)

    def _check(self) -> None:
        agents = self._agents.by_host
        for agent in agents.values():
            agent.call("stop")
        for agent in agents.values():
            agent.send("wait", what="drained", timeout_s=DRAIN_S)
        drained = {host: agent.receive(DRAIN_S + 30)["holds"] for host, agent in agents.items()}
        self._ask_states(time.monotonic() - self._started)
        for watched in self.watched:
            problem = watched.check_end()
            if problem is not None:
                raise MeshFailedError(f"{watched.stream.name}: {problem}")
        if not all(drained.values()):
            raise MeshFailedError(f"not drained: {', '.join(h for h, done in drained.items() if not done)}")
        for host, agent in agents.items():
            for number, problem in enumerate(agent.call("verify")["problems"]):
                if problem is not None:
                    raise MeshFailedError(f"{host} qp {number}: {problem}")
        for host in agents:
            growth = self.memory[host].growth_bytes if host in self.memory else None
            if growth is not None and growth > GROWTH_BYTES:
                raise MeshFailedError(
                    f"{host}: its memory grew by {growth / MIB:.1f} MiB while nothing changed"
                )

    def collect(self) -> Collected:
        """Return the results and counters."""
        lost: dict[str, int] = {}
        if self._problem is None:
            lost = self._agents.end_logs()
        return Collected(
            bytes_delivered=sum(int(w.receiver.get("bytes_delivered", 0)) for w in self.watched),
            problem=self._problem,
            event_logs=dict(self._agents.event_logs),
            details={
                "duration_s": round(self._duration_s, 3),
                "totals": totals(self.watched),
                "streams": [watched.to_dict() for watched in self.watched],
                "memory": {name: memory.to_dict() for name, memory in self.memory.items()},
                "drops": {host: dict(drops) for host, drops in self._drops.items()},
                "log_events_lost": sum(lost.values()),
            },
        )


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if the process has ended."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def totals(streams: Sequence[Watched]) -> dict[str, int]:
    """Return the sums over all streams: messages, bytes and packets."""
    sent = [watched.sender.get("counters", {}) for watched in streams]
    got = [watched.receiver.get("counters", {}) for watched in streams]

    def total(ends: Sequence[Mapping[str, int]], key: str) -> int:
        return sum(end.get(key, 0) for end in ends)

    return {
        "messages": sum(w.sender.get("posted", 0) for w in streams),
        "bytes": sum(w.sender.get("posted_bytes", 0) for w in streams),
        "delivered_messages": sum(w.receiver.get("received", 0) for w in streams),
        "delivered_bytes": sum(w.receiver.get("bytes_delivered", 0) for w in streams),
        "placed_bytes": total(got, "bytes_placed"),
        "packets_sent": total(sent, "sent"),
        "packets_retransmitted": total(sent, "retransmitted"),
        "packets_lost": total(sent, "lost"),
        "losses_spurious": total(sent, "spurious"),
        "duplicates_received": total(got, "duplicates"),
        "trims_received": total(got, "trims_received"),
        "sacks_sent": total(got, "sacks_sent"),
        "nacks_sent": total(got, "nacks_sent"),
    }
