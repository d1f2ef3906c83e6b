"""Streams over MRC or RoCEv2: an agent on each host, and a queue pair for each flow."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from mrclab.hosts.compiled import in_use as compiled_in_use
from mrclab.hosts.remote import RemoteAgent
from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.transports import TRANSPORTS
from mrclab.live.plan import TrafficPlan
from mrclab.live.sending.traffic import Flow, News, ProcessTraffic
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import fabric_text

LIGHT_BPS = 150_000_000
"""Payload of all transports together: agents need less than half of two CPUs for it."""


def config_of(transport: str, plan: TrafficPlan) -> dict[str, Any]:
    """Return the options of a transport's endpoints."""
    # A viewer may leave a fabric broken for as long as they like.
    return {"mtu_bytes": plan.payload_bytes, **TRANSPORTS[transport].core.patient}


def goes_first(plan: TrafficPlan, flows: int) -> bool:
    """Return True if agents may go before all other processes, as a real NIC would not wait for a CPU.

    A browser on the same machine then does not make recoveries longer. Traffic that could take the CPUs whole
    leaves them to the kernel to share, or the page would stand still.
    """
    return compiled_in_use() and len(plan.transports) * flows * plan.rate_bps <= LIGHT_BPS


class AgentTraffic(ProcessTraffic):
    """The streams of one transport. See Traffic."""

    def _start(self, network: FabricNetwork, plan: TrafficPlan, attempt: int) -> None:
        self._agents: dict[str, RemoteAgent] = {}
        self._ends: list[tuple[int, int]] = []
        """Of each flow: the numbers of its queue pairs at the source's and at the target's agent."""
        fabric = network.fabric
        pairs = plan.pairs(fabric)
        hosts = list(dict.fromkeys(host for pair in pairs for host in pair))
        uses = {host: sum(host in pair for pair in pairs) for host in hosts}
        text = fabric_text(fabric)
        for host in hosts:
            spawn = partial(network.spawn, host)
            agent = self._stack.enter_context(RemoteAgent(host, spawn, stderr=subprocess.DEVNULL))
            self._agents[host] = agent
            agent.send(
                "open",
                topology=fabric.name,
                topology_yaml=text,
                host=host,
                transport=self.name,
                config=config_of(self.name, plan),
                seed=f"{plan.seed} {self.name} {host} {attempt}",  # transports of a host must not share QPNs
                cpu=None,
                realtime=goes_first(plan, len(pairs)),
                awake=False,  # a page may be left open for hours
                qps=uses[host],
            )
        attributes = {host: agent.receive()["qps"] for host, agent in self._agents.items()}
        taken = dict.fromkeys(hosts, 0)
        flows = []
        for number, (source, target) in enumerate(pairs):
            at, to = taken[source], taken[target]
            taken[source] += 1
            taken[target] += 1
            stream = asdict(StreamPlan(plan.message_bytes, plan.rate_bps, plan.seed + number))
            remote = self._agents[target].call("receive", plan=stream, qp=to)
            self._agents[source].call("send", plan=stream, remote=remote, qp=at)
            for host, qp, peer, peer_qp in ((target, to, source, at), (source, at, target, to)):
                self._agents[host].call("connect", qp=qp, peer=peer, attributes=attributes[peer][peer_qp])
            qpns = attributes[source][at]["qpn"], attributes[target][to]["qpn"]
            flows.append(Flow(source, target, *qpns))
            self._ends.append((at, to))
        self.flows = tuple(flows)
        for agent in self._agents.values():
            agent.call("watch")
        for host in dict.fromkeys(flow.source for flow in flows):
            self._agents[host].call("start")

    @property
    def hosts(self) -> Sequence[str]:
        """See Traffic."""
        return tuple(self._agents)

    def news(self, shown: int) -> News:
        """See Traffic."""
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
