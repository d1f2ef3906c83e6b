"""The spray: a steady, paced stream of writes from one NIC to another, driven by two agents.

A control loop sets the rate: as high as the endpoints can send without using too much of their CPUs. `Pace`
computes the next rate from the measured CPU shares and rates. `Pace` has no input or output.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Self

from mrclab.experiments.live.drivers.driver import Agents, Setting, sleep, transport_config
from mrclab.experiments.measure.evidence import Collected
from mrclab.experiments.measure.load import Beats, Gap, Load, Snapshot, load_between, take_snapshot
from mrclab.experiments.measure.validity import too_fast
from mrclab.experiments.spec.workloads import Spray
from mrclab.hosts.agent_streams import AgentStreams
from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.worker import RemoteAgent
from mrclab.p4src.targets import capabilities_of

LEAST_SHARE = 0.1
"""The rate is at least this share of the scenario's rate. If that is still too fast, the run is not valid."""
DOWN, UP = 0.75, 1.05
"""A trial changes the rate by no more than these factors."""
NEAR = 0.05
"""The rate is kept if the CPU share is below the wanted share by at most this number."""
REFUSED = 0.9
"""After a trial that was too fast, the rate stays at or below this share of the trial's rate."""


@dataclass(slots=True)
class Pace:
    """A search for the highest rate of payload at which no endpoint uses more than ``share`` of a CPU.

    ``share`` is from 0 to 1 and includes the time of waiting for a CPU. ``most_bps`` is the upper limit of
    the rate. ``bps`` is the rate from now on. Both rates are in bit/s.
    """

    most_bps: int
    share: float
    bps: int = field(init=False)
    _least_bps: int = field(init=False)

    def __post_init__(self) -> None:
        self.bps = self.most_bps
        self._least_bps = round(LEAST_SHARE * self.most_bps)

    def look(self, made_bps: int, share: float) -> bool:
        """Set the rate after a part of the warm-up; return True if the rate need not change.

        ``made_bps`` is the rate that the sender reached in this part. A sender that is too busy does not
        reach ``bps``. ``share`` is the largest share of a CPU that an endpoint used.
        """
        if share <= self.share and made_bps >= 0.9 * self.bps:
            return True
        self._set(made_bps * self.share / max(share, 0.01))
        return False

    def after(self, load: Load) -> bool:
        """Set the rate after a trial with this load; return True if the trial was not too fast."""
        if too_fast(load):
            self.most_bps = round(REFUSED * self.bps)
        factor = 1.0
        if load.share and not self.share - NEAR <= load.share <= self.share:
            factor = min(max(self.share / load.share, DOWN), UP)
        before = self.bps
        self._set(before * factor)
        return self.bps >= before

    def _set(self, bps: float) -> None:
        self.bps = max(min(round(bps), self.most_bps), self._least_bps)


DRAIN_TIMEOUT_S = 10.0
# The warm-up measures for LOOK_NS and then adapts the rate, at most LOOKS times, until the rate is right.
LOOKS, LOOK_NS = 3, 150_000_000
# An agent runs at least every BEAT_NS. It reports the times longer than GAP_NS in which it did not run.
BEAT_NS, GAP_NS = 200_000, 500_000


class SprayDriver:
    """The driver of a spray: two agents and the stream between them."""

    processes = 2
    next_ns: int | None = None
    over = False

    def __init__(self, setting: Setting) -> None:
        assert isinstance(setting.scenario.workload, Spray)
        self._setting = setting
        self._workload = setting.scenario.workload
        self._agents = Agents(setting)
        self._pace = Pace(self._workload.rate_bps, self._workload.busy)
        self._looks: list[Mapping[str, Any]] = []
        self._rates_bps: list[int] = []
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
        """Return a context without effect: no priority is needed, because CPUs are partly idle."""
        return contextlib.nullcontext()

    def _connect(self) -> None:
        """Open both NICs, exchange the attributes of their queue pairs, and prepare the stream."""
        workload, seed = self._workload, self._setting.seed
        config = transport_config(self._setting, nic_options(workload))
        hosts = [self._sender.host, self._receiver.host]
        # Each agent gets its own CPU. Otherwise the kernel would wake the receiver on the sender's CPU, which
        # is still busy with forwarding the packets.
        cpus = sorted(os.sched_getaffinity(0))
        streams = AgentStreams(
            self._agents.by_host,
            self._setting.running.fabric,
            lambda host: {
                "config": config,
                "seed": seed,
                "cpu": cpus[hosts.index(host) % len(cpus)] if len(cpus) > 1 else None,
            },
        )
        source, target = (hosts[0], 0), (hosts[1], 0)
        streams.prepare(source, target, StreamPlan(workload.message_bytes, workload.rate_bps, seed))
        streams.connect(target, source)
        streams.connect(source, target)
        self._refused = sorted({opened["refused"] for opened in streams.opened.values() if opened["refused"]})

    def start(self) -> int:
        """Start the stream, warm up, and find a rate. Return the time at which the rate is found, ns."""
        self._sender.call("start")
        self.beats()  # from now on the agents record when they did not run
        sleep(self._setting.scenario.live_warmup_ns)
        for _ in range(LOOKS if self._workload.busy else 0):
            before = self._snapshot()
            sleep(LOOK_NS)
            load = load_between(before, self._snapshot())
            made_bps = (load.packets_per_s or 0) * self._workload.payload_bytes * 8
            self._note(load, "warm-up")
            if self._pace.look(made_bps, load.share or 0.0):
                break
            self._sender.call("pace", rate_bps=self._pace.bps)
        return time.monotonic_ns()

    def _snapshot(self) -> Snapshot:
        return take_snapshot(self.pids, beats=self.beats())

    def _note(self, load: Load, part: str) -> None:
        self._looks.append(
            {
                "part": part,
                "asked_packets_per_s": round(self._pace.bps / 8 / self._workload.payload_bytes),
                "packets_per_s": load.packets_per_s,
                "share": load.share,
                "busiest": load.busiest,
                "cost_ns": dict(load.cost_ns),
            }
        )

    @property
    def rehearses(self) -> bool:
        """Return True if the rate is adapted. Then trials that do not count precede the other trials."""
        return bool(self._workload.busy)

    def beats(self) -> Beats | None:
        """Return the agents' reports; None while an agent must first answer an older request."""
        if self._agents.waiting:
            return None
        both = {"sender": self._sender, "receiver": self._receiver}
        answers = {name: agent.call("beat", every_ns=BEAT_NS, gap_ns=GAP_NS) for name, agent in both.items()}
        gaps = tuple(Gap(name, a, b) for name, answer in answers.items() for a, b in answer["gaps"])
        sender = answers["sender"]
        return Beats(int(sender["sent"]), gaps, self._first, tuple(sender["retired_ns"]))

    @property
    def _first(self) -> bool:
        """Return True if other programs cannot take a CPU from the endpoints or the forwarding processes."""
        return not self._refused and capabilities_of(self._setting.running.target_name).forwards_in_kernel

    def adapt(self, load: Load) -> bool:
        """Adapt the rate after a trial; return True if that trial's rate was not too high."""
        self._rates_bps.append(self._pace.bps)
        if not self._workload.busy:
            return True
        self._note(load, "trial")
        before = self._pace.bps
        right = self._pace.after(load)
        if self._pace.bps != before:
            self._sender.call("pace", rate_bps=self._pace.bps)
        return right

    def descriptors(self) -> Collection[RemoteAgent]:
        """Return both agents: each agent may send an answer, or end."""
        return self._agents.by_host.values()

    def receive(self, ready: Sequence[object]) -> None:
        """Receive the agents' answers. Raise AgentError if an agent has ended."""
        self._agents.receive(ready)

    def act(self, clock: Callable[[], int]) -> None:
        """Do nothing, because the driver plans no actions."""

    def change_profile(self, host: str, request: dict[str, Any]) -> Mapping[str, Any]:
        """Send a host's NIC a request about its profiles, and return the answer."""
        answer: Mapping[str, Any] = self._agents.by_host[host].call("profiles", request=request)["answer"]
        return answer

    def ask_restored(self, timeout_s: float) -> None:
        """Start a wait that ends after ``timeout_s``, or when the sender has no path marked as broken."""
        self._agents.ask_restored(timeout_s)

    @property
    def restored(self) -> bool | None:
        """Return whether all paths are in use again; None while `ask_restored` still waits."""
        return self._agents.restored

    def stop(self) -> None:
        """Stop sending, and wait until all sent packets have arrived."""
        self._sender.call("stop")
        self._sender.call("wait", what="drained", timeout_s=DRAIN_TIMEOUT_S)
        self._states = self._sender.call("status"), self._receiver.call("status")

    @property
    def _usual_bps(self) -> int:
        """Return the median rate of the trials; without trials, the rate that the warm-up found."""
        return round(median(self._rates_bps or [self._pace.bps]))

    def collect(self) -> Collected:
        """Return the results and counters."""
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
                "stream": {**stream_details(self._workload, self._usual_bps), "looks": self._looks},
            },
        )


def nic_options(workload: Spray) -> dict[str, Any]:
    """Return the options that the workload sets for both NICs."""
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
    """Return two texts: an error in the data, and why the stream failed. Each text can be None."""
    if receiver["problem"] is not None:
        return str(receiver["problem"]), None
    if sender["failed"] is not None:
        return None, f"the sender gave up: {sender['failed']}"
    if not sender["drained"] or sender["posted"] != receiver["received"]:
        return f"{receiver['received']} of {sender['posted']} messages arrived", None
    return None, None


def stream_details(workload: Spray, rate_bps: int) -> dict[str, Any]:
    """Return a description of the sent traffic for the result. ``rate_bps`` counts payload only."""
    return {
        "rate_bps": rate_bps,
        "packets_per_s": round(rate_bps / 8 / workload.payload_bytes),
        "payload_bytes": workload.payload_bytes,
        "burst_packets": workload.burst,
        "adapted": bool(workload.busy) and rate_bps < workload.rate_bps,
        "wanted_share": workload.busy,
    }
