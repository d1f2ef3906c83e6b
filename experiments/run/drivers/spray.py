"""The spray: a steady, paced stream of writes from one NIC to another, driven by two agents."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

from mrclab.experiments.measure.validity import busiest_share, take_snapshot
from mrclab.experiments.run.drivers.agents import Agents, transport_config
from mrclab.experiments.run.drivers.driver import Collected, Setting
from mrclab.experiments.run.waiting import sleep
from mrclab.experiments.spec.workloads import Spray
from mrclab.hosts.remote import RemoteAgent
from mrclab.hosts.streams.stream import StreamPlan
from mrclab.topologies import fabric_text

DRAIN_TIMEOUT_S = 10.0
# The rate is settled on by so many looks at so much of the stream, each time from what the last one found.
LOOKS, LOOK_NS = 3, 150_000_000
LEAST_SHARE = 0.1  # of the scenario's rate: less is not worth running, and validity will say so


class SprayDriver:
    """Two agents and the stream between them."""

    processes = 2
    next_ns: int | None = None
    over = False

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.scenario.workload, Spray)
        self._setting = setting
        self._workload = setting.scenario.workload
        self._agents = Agents(setting)
        self._rate_bps = self._workload.rate_bps
        self._refused: list[str] = []
        self._states: tuple[Mapping[str, Any], Mapping[str, Any]] | None = None
        self.pids: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._agents.start()
        try:
            self._connect()
            self._agents.begin_logs()
        except BaseException:
            self._agents.close()
            raise
        self.pids = {"sender": self._sender.pid, "receiver": self._receiver.pid}
        return self

    def __exit__(self, *error: Any) -> None:
        self._agents.close()

    @property
    def _sender(self) -> RemoteAgent:
        return self._agents.by_host[self._setting.placement.hosts[0]]

    @property
    def _receiver(self) -> RemoteAgent:
        return self._agents.by_host[self._setting.placement.hosts[1]]

    def priority(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes nothing: agents leave room on their CPUs."""
        return contextlib.nullcontext()

    def _connect(self) -> None:
        """Open both NICs, have the two queue pairs exchange their attributes, and prepare the stream."""
        workload, fabric, seed = self._workload, self._setting.running.fabric, self._setting.seed
        config = nic_options(workload)
        plan = asdict(StreamPlan(workload.message_bytes, workload.rate_bps, seed))
        text = fabric_text(fabric)
        # A CPU each: the kernel would wake the receiver on the CPU where the sender still forwards for it.
        cpus = sorted(os.sched_getaffinity(0))
        opened = {
            agent.host: agent.call(
                "open",
                topology=fabric.name,
                topology_yaml=text,
                host=agent.host,
                config=transport_config(self._setting, config),
                seed=seed,
                cpu=cpus[number % len(cpus)] if len(cpus) > 1 else None,
            )
            for number, agent in enumerate((self._sender, self._receiver))
        }
        remote = self._receiver.call("receive", plan=plan)
        self._sender.call("send", plan=plan, remote=remote)
        for agent, peer in ((self._receiver, self._sender), (self._sender, self._receiver)):
            agent.call("connect", peer=peer.host, attributes=opened[peer.host]["qps"][0])
        self._refused = sorted({answer["refused"] for answer in opened.values() if answer["refused"]})

    def start(self) -> int:
        """Begin, warm up, and settle on a rate; return the time then."""
        self._sender.call("start")
        sleep(self._setting.scenario.live_warmup_ns)
        self._settle_on_a_rate()
        return time.monotonic_ns()

    def _settle_on_a_rate(self) -> None:
        """Lower the rate until no endpoint is busier than the scenario wants."""
        if not self._workload.busy:
            return
        for _ in range(LOOKS):
            sent, before = self._sent(), take_snapshot(self.pids)
            sleep(LOOK_NS)
            packets, after = self._sent() - sent, take_snapshot(self.pids)
            took_ns = after.t_ns - before.t_ns
            made_bps = packets * self._workload.payload_bytes * 8 * 10**9 // took_ns
            self._rate_bps = fitting_rate(made_bps, busiest_share(before, after), self._workload)
            self._sender.call("pace", rate_bps=self._rate_bps)

    def _sent(self) -> int:
        return int(self._sender.call("status")["counters"]["sent"])

    def descriptors(self) -> Collection[RemoteAgent]:
        """Return both agents: each is heard also where it ends."""
        return self._agents.by_host.values()

    def receive(self, ready: Sequence[object]) -> None:
        """Take answers. Raises AgentError where an agent has ended."""
        self._agents.receive(ready)

    def act(self, clock: Callable[[], int]) -> None:
        """Do nothing: agents work by themselves."""

    def ask_restored(self, timeout_s: float) -> None:
        """Begin to wait until the sender takes no path for broken, at most ``timeout_s``."""
        self._agents.ask_restored(timeout_s)

    @property
    def restored(self) -> bool | None:
        """Return the answer: None while there is none yet."""
        return self._agents.restored

    def stop(self) -> None:
        """Send no more, and wait until what was sent has arrived."""
        self._sender.call("stop")
        self._sender.call("wait", what="drained", timeout_s=DRAIN_TIMEOUT_S)
        self._states = self._sender.call("status"), self._receiver.call("status")

    def collect(self) -> Collected:
        """Return what came out."""
        assert self._states is not None, "stop comes first"
        sender, receiver = self._states
        problem, failure = verdict(sender, receiver)
        lost = self._agents.end_logs()
        return Collected(
            counters={key: int(value) for key, value in sender["counters"].items()},
            bytes_delivered=int(receiver["bytes_delivered"]),
            problem=problem,
            failure=failure,
            notes=tuple(self._refused),
            failures=tuple(
                f"event log: {count} events of {host} are missing" for host, count in lost.items()
            ),
            event_logs=dict(self._agents.event_logs),
            details={
                "endpoints": {"sender": sender, "receiver": receiver},
                "stream": stream_details(self._workload, self._rate_bps),
            },
        )


def nic_options(workload: Spray) -> dict[str, Any]:
    """Return the options of the two NICs that the workload asks for."""
    options: dict[str, Any] = {"mtu_bytes": workload.payload_bytes}
    if workload.burst:
        burst_bytes = workload.burst * workload.payload_bytes
        options |= {
            "rate_bps": workload.rate_bps,
            "rate_burst_bytes": burst_bytes,
            "rate_quantum_bytes": burst_bytes - workload.payload_bytes + 1,
        }
    return options


def verdict(sender: Mapping[str, Any], receiver: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return what was wrong with the data, and why the stream did not come to its end; None where nothing."""
    if receiver["problem"] is not None:
        return str(receiver["problem"]), None
    if sender["failed"] is not None:
        return None, f"the sender gave up: {sender['failed']}"
    if not sender["drained"] or sender["posted"] != receiver["received"]:
        return f"{receiver['received']} of {sender['posted']} messages arrived", None
    return None, None


def fitting_rate(made_bps: int, busy: float, workload: Spray) -> int:
    """Return the rate at which endpoints are as busy as wanted.

    The busier one is ``busy`` (0 to 1) with sending ``made_bps``: what was really sent, since a saturated
    sender falls short of what it is asked for.
    """
    wanted = round(made_bps * workload.busy / max(busy, 0.01))
    return min(workload.rate_bps, max(wanted, round(LEAST_SHARE * workload.rate_bps)))


def stream_details(workload: Spray, rate_bps: int) -> dict[str, Any]:
    """Return what was sent, for the result: ``rate_bps`` is of payload."""
    return {
        "rate_bps": rate_bps,
        "packets_per_s": round(rate_bps / 8 / workload.payload_bytes),
        "payload_bytes": workload.payload_bytes,
        "burst_packets": workload.burst,
        "adapted": bool(workload.busy) and rate_bps < workload.rate_bps,
    }
