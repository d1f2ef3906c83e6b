"""The senders of the live page: agents, rank processes, and the kernel's TCP/IP stack.

The traffic of a transport is either streams between agents (`AgentTraffic`) or a job of rank processes
(`RankTraffic`). Agents support neither all-reduces nor TCP, so rank processes run these two.
"""

from __future__ import annotations

import subprocess
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from mrclab.control import call
from mrclab.experiments.live.drivers.ranks import LEAD_NS, OPEN_TIMEOUT_S, connect
from mrclab.hosts.agent_streams import AgentStreams
from mrclab.hosts.compiled import in_use as compiled_in_use
from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.transports import TRANSPORTS
from mrclab.hosts.worker import RemoteAgent
from mrclab.live.plan import TrafficPlan
from mrclab.testbed import kernel_ip
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import Fabric, fabric_text


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a connection, with the QP numbers at both ends. For TCP, these numbers are 0."""

    source: str
    target: str
    source_qpn: int = 0
    target_qpn: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """The observations of a transport at one time."""

    placed: Sequence[tuple[int, int]]
    """For each flow: the time of this reading (monotonic, ns), and the payload bytes delivered until then."""
    sent: int
    resent: int
    """The number of packets that all flows have sent again so far."""
    failed: bool
    """True if a connection has given up."""
    paths: list[list[int]]
    """A row for each path of the shown flow, from `mrclab.hosts.observation.path_rows`."""
    events: Sequence[tuple[str, dict[str, Any]]]
    """The events of paths since the last call of `news`, each with the host that reports it."""
    steps: Sequence[tuple[int, int, str]] = ()
    """The steps of an all-reduce since the last call: number, duration in us, host that ended last."""


class Traffic(Protocol):
    """The flows of one transport. They send until ``close`` is called."""

    name: str
    flows: tuple[Flow, ...]

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts with a process of this traffic."""

    def news(self, shown: int) -> News:
        """Read the observations of all processes. ``shown`` is the flow whose paths are needed.

        Raise AgentError if a process has ended.
        """

    def close(self) -> None:
        """End the processes."""


class ProcessTraffic(ABC):
    """A transport's processes in the hosts' namespaces. If one process cannot start, all are ended."""

    def __init__(self, network: FabricNetwork, name: str, plan: TrafficPlan, attempt: int) -> None:
        """Start and connect the processes. ``attempt`` counts the starts. Each start uses different QPNs.

        Raise AgentError if a process reports an error.
        """
        self.name = name
        self.flows: tuple[Flow, ...] = ()
        self._stack = ExitStack()
        try:
            self._start(network, plan, attempt)
        except BaseException:
            self._stack.close()
            raise

    @abstractmethod
    def _start(self, network: FabricNetwork, plan: TrafficPlan, attempt: int) -> None:
        """Start and connect the processes, add them to ``_stack``, and set ``flows``."""

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


LIGHT_BPS = 150_000_000
"""If all transports together send at most this payload rate (bit/s), the agents need less than half the time
of two CPUs."""


def config_of(transport: str, plan: TrafficPlan) -> dict[str, Any]:
    """Return the options of a transport's endpoints."""
    # The options `patient` keep connections alive during long faults: viewers may restore the fabric late.
    return {"mtu_bytes": plan.payload_bytes, **TRANSPORTS[transport].core.patient}


def goes_first(plan: TrafficPlan, flows: int) -> bool:
    """Return True if agents get the highest priority. Like a real NIC, they then do not wait for a CPU.

    With this priority, a browser on the same machine does not make recoveries longer. Traffic that could use
    all CPUs has normal priority, because otherwise the page would not be updated.
    """
    return compiled_in_use() and len(plan.transports) * flows * plan.rate_bps <= LIGHT_BPS


class AgentTraffic(ProcessTraffic):
    """The streams of one transport, between agents."""

    def _start(self, network: FabricNetwork, plan: TrafficPlan, attempt: int) -> None:
        self._agents: dict[str, RemoteAgent] = {}
        self._ends: list[tuple[int, int]] = []
        """For each flow: the index of its queue pair at the source's agent and at the target's agent."""
        fabric = network.fabric
        pairs = plan.pairs(fabric)
        hosts = list(dict.fromkeys(host for pair in pairs for host in pair))
        uses = {host: sum(host in pair for pair in pairs) for host in hosts}
        for host in hosts:
            spawn = partial(network.spawn, host)
            agent = self._stack.enter_context(RemoteAgent(host, spawn, stderr=subprocess.DEVNULL))
            self._agents[host] = agent
        streams = AgentStreams(
            self._agents,
            fabric,
            lambda host: {
                "transport": self.name,
                "config": config_of(self.name, plan),
                # Seeds differ, because QPNs are drawn with the seed, and all QPNs of a host must differ.
                "seed": f"{plan.seed} {self.name} {host} {attempt}",
                "cpu": None,
                "realtime": goes_first(plan, len(pairs)),
                "awake": False,  # let idle CPUs sleep: a page may stay open for hours
                "qps": uses[host],
            },
        )
        taken = dict.fromkeys(hosts, 0)
        flows = []
        for number, (source, target) in enumerate(pairs):
            at, to = (source, taken[source]), (target, taken[target])
            taken[source] += 1
            taken[target] += 1
            streams.prepare(at, to, StreamPlan(plan.message_bytes, plan.rate_bps, plan.seed + number))
            streams.connect(to, at)
            streams.connect(at, to)
            flows.append(Flow(source, target, streams.qpn(at), streams.qpn(to)))
            self._ends.append((at[1], to[1]))
        self.flows = tuple(flows)
        for agent in self._agents.values():
            agent.call("watch")
        for host in dict.fromkeys(flow.source for flow in flows):
            self._agents[host].call("start")

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts with an agent."""
        return tuple(self._agents)

    def news(self, shown: int) -> News:
        """Read the observations of all agents. ``shown`` is the flow whose paths are needed."""
        shown_host, shown_qp = self.flows[shown].source, self._ends[shown][0]
        for host, agent in self._agents.items():
            agent.send("news", paths=[shown_qp] if host == shown_host else [])
        news: Mapping[str, Mapping[str, Any]] = {h: agent.receive() for h, agent in self._agents.items()}
        ends = list(zip(self.flows, self._ends, strict=True))
        sources = [news[flow.source]["flows"][at] for flow, (at, _) in ends]
        return News(
            placed=[
                (int(news[flow.target]["t_ns"]), int(news[flow.target]["flows"][to]["placed"]))
                for flow, (_, to) in ends
            ],
            sent=sum(source["sent"] for source in sources),
            resent=sum(source["resent"] for source in sources),
            failed=any(source["failed"] is not None for source in sources),
            paths=news[shown_host]["paths"][str(shown_qp)],
            events=[(host, event) for host, answer in news.items() for event in answer["events"]],
        )


MODULE = "mrclab.hosts.collectives.rank"
FOREVER_NS = 10**18
COMPUTE_NS = 20_000_000
"""The pause at the start of each step of the all-reduce. A GPU would compute during this time."""
DEPTH = 8
"""The number of messages that a TCP flow has in flight."""


class RankTraffic(ProcessTraffic):
    """The job of one transport: rank processes, one on each host."""

    def _start(self, network: FabricNetwork, plan: TrafficPlan, attempt: int) -> None:
        self._pairs = plan.pairs(network.fabric)
        self._hosts = list(dict.fromkeys(host for pair in self._pairs for host in pair))
        self._ranks: list[RemoteAgent] = []
        self._ended = False
        self._steps = Steps(self._hosts)
        fabric = network.fabric
        for rank, host in enumerate(self._hosts):
            spawn = partial(network.spawn, host)
            process = RemoteAgent(host, spawn, stderr=subprocess.DEVNULL, module=MODULE)
            self._ranks.append(self._stack.enter_context(process))
            process.send("open", **self._opening(fabric, rank, plan, attempt))
        known = connect(self._ranks, OPEN_TIMEOUT_S)
        self.flows = tuple(self._flow(known, source, target) for source, target in self._pairs)
        start_ns = time.monotonic_ns() + LEAD_NS
        for process in self._ranks:
            process.send("run", start_ns=start_ns, measure_ns=start_ns, denied=[])

    def _opening(self, fabric: Fabric, rank: int, plan: TrafficPlan, attempt: int) -> dict[str, Any]:
        transport = TRANSPORTS[self.name]
        options = {**transport.options, **config_of(self.name, plan)} if transport.core.has_nic else {}
        return {
            "topology": fabric.name,
            "topology_yaml": fabric_text(fabric),
            "host": self._hosts[rank],
            "ranks_here": [rank],
            "ranks": len(self._hosts),
            "transport": {
                "kind": transport.kind,
                "options": options,
                "propagation_ns": 0,
            },
            "job": self._job(plan),
            "seed": zlib.crc32(f"{plan.seed} {self.name} {attempt}".encode()),
            "series_ns": 10**9,
            "cpu": None,
            "alone": False,
            "first": False,
        }

    def _job(self, plan: TrafficPlan) -> dict[str, Any]:
        if plan.pattern == "all-reduce":
            params: dict[str, Any] = {
                "dtype": "float32",
                "size_bytes": plan.message_bytes,
                "compute_ns": COMPUTE_NS,
                "steps": FOREVER_NS,
            }
            return {"kind": "training", "params": params}
        flows = [
            {
                "src": self._hosts.index(source),
                "dst": self._hosts.index(target),
                "message_bytes": plan.message_bytes,
                "depth": DEPTH,
                "rate_bps": plan.rate_bps,
                "duration_ns": FOREVER_NS,
                "seed": plan.seed + number,
            }
            for number, (source, target) in enumerate(self._pairs)
        ]
        return {"kind": "flows", "params": {"flows": flows}}

    def _flow(self, known: Mapping[str, Mapping[str, Any]], source: str, target: str) -> Flow:
        """Return a flow with the QPNs that its ranks have exchanged."""
        if not TRANSPORTS[self.name].core.has_nic:
            return Flow(source, target)
        a, b = str(self._hosts.index(source)), str(self._hosts.index(target))
        return Flow(source, target, known[a][b]["qps"][0]["qpn"], known[b][a]["qps"][0]["qpn"])

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts with a rank."""
        return tuple(self._hosts)

    def news(self, shown: int) -> News:
        """Read the observations of all ranks. ``shown`` is the flow whose paths are needed."""
        source, target = (self._hosts.index(host) for host in self._pairs[shown])
        for process in self._ranks:
            process.send("news", paths={str(source): target}, forget=True)
        answers = [self._answer(process) for process in self._ranks]
        ranks = [answer["ranks"][str(rank)] for rank, answer in enumerate(answers)]
        ends = [(self._hosts.index(a), self._hosts.index(b)) for a, b in self._pairs]
        for rank, one in enumerate(ranks):
            self._steps.add(rank, one["steps"])
        return News(
            placed=[(int(answers[b]["t_ns"]), int(ranks[b]["placed"].get(str(a), 0))) for a, b in ends],
            sent=sum(one["counters"].get("sent_packets", 0) for one in ranks),
            resent=sum(one["counters"].get("retransmitted_packets", 0) for one in ranks),
            failed=self._ended,
            paths=ranks[source]["paths"],
            events=[(h, event) for h, one in zip(self._hosts, ranks, strict=True) for event in one["events"]],
            steps=self._steps.take(),
        )

    def _answer(self, process: RemoteAgent) -> dict[str, Any]:
        """Return a rank's answer to ``news``. If its answer to ``run`` comes first, note the job's end."""
        answer = process.receive()
        if "ranks" not in answer:
            self._ended = True
            answer = process.receive()
        return answer


class Steps:
    """The steps of a job, computed from its ranks' steps. A step ends when the last rank has ended it."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._waiting: list[list[tuple[int, int, int]]] = [[] for _ in hosts]
        self._number = 0

    def add(self, rank: int, rows: Sequence[Sequence[int]]) -> None:
        """Add a rank's newest steps, as `TrainingJob.samples` returns them."""
        self._waiting[rank] += [(start, reduced, end) for start, _, reduced, end in rows]

    def take(self) -> list[tuple[int, int, str]]:
        """Return (number, duration in us, last host) of each step that has ended since the last call."""
        found = []
        for rows in zip(*self._waiting, strict=False):
            self._number += 1
            took_ns = max(end for _, _, end in rows) - min(start for start, _, _ in rows)
            last = max(range(len(rows)), key=lambda rank: rows[rank][1])
            found.append((self._number, round(took_ns / 1e3), self._hosts[last]))
        for waiting in self._waiting:
            del waiting[: len(found)]
        return found


class KernelStack:
    """The kernel's IP on the fabric: addresses on the hosts' ports, routes in the switches.

    It is off until ``up``. Then the kernel also sees packets of other transports. The kernel answers these
    packets with ICMPv6 errors, at most one a second to each host (net.ipv6.icmp.ratelimit). The transports
    ignore these errors.
    """

    def __init__(self, network: FabricNetwork) -> None:
        self._network = network
        self._on = False

    def up(self) -> None:
        """Turn the kernel's IP on. Raise OSError if the kernel refuses, and the errors of `call`."""
        if self._on:
            return
        call(self._network.names, "ecmp")  # these routes stay, because no other transport uses them
        self._on = True
        kernel_ip.address_hosts(self._network.fabric, self._network.places)

    def down(self) -> None:
        """Turn the kernel's IP off, if it is on."""
        if self._on:
            self._on = False
            kernel_ip.silence_hosts(self._network.fabric, self._network.places)
