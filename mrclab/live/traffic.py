"""The traffic of the live lab: an agent per host and transport, and the flows between them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from hosts.remote import RemoteAgent
from hosts.streams.stream import StreamPlan
from mrclab.live.plan import TrafficPlan
from testbed.network import FabricNetwork
from topologies import fabric_text

NEVER_ENDING = 1 << 20
"""Retries of MRC: a viewer may leave a fabric broken for as long as they like."""
ROCE_TIMEOUT_EXPONENT = 17
"""0.54 s; with seven retries a dead path ends a connection after some 4 s. NCCL waits 4.3 s each."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One queue pair's stream: ``source_qp`` and ``target_qp`` are indices at their agents, the QPNs are
    those that packets to the source and to the target carry."""

    source: str
    target: str
    source_qp: int
    target_qp: int
    source_qpn: int
    target_qpn: int


def config_of(transport: str, plan: TrafficPlan) -> dict[str, Any]:
    """Return the options of a transport's endpoints."""
    if transport == "rocev2":
        return {"mtu_bytes": plan.payload_bytes, "timeout_exponent": ROCE_TIMEOUT_EXPONENT}
    return {"mtu_bytes": plan.payload_bytes, "timestamps": True, "exponential_retries": NEVER_ENDING}


class TransportTraffic:
    """The flows of one transport, running until ``close``."""

    def __init__(self, network: FabricNetwork, name: str, plan: TrafficPlan) -> None:
        """Start and connect the agents. Raise AgentError where one refuses."""
        self.name = name
        self.flows: tuple[Flow, ...] = ()
        self._agents: dict[str, RemoteAgent] = {}
        self._stack = ExitStack()
        try:
            self._start(network, plan)
        except BaseException:
            self._stack.close()
            raise

    def _start(self, network: FabricNetwork, plan: TrafficPlan) -> None:
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
                seed=f"{plan.seed} {self.name} {host}",  # two transports on a host must not share QPNs
                cpu=None,
                realtime=False,
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
            flows.append(Flow(source, target, at, to, *qpns))
        self.flows = tuple(flows)
        for agent in self._agents.values():
            agent.call("watch")
        for host in dict.fromkeys(flow.source for flow in flows):
            self._agents[host].call("start")

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts with an agent."""
        return tuple(self._agents)

    def news(self, shown: Mapping[str, Sequence[int]]) -> dict[str, dict[str, Any]]:
        """Return each agent's news; ``shown`` are the queue pairs by host whose paths are wanted.

        Raise AgentError where an agent is gone.
        """
        for host, agent in self._agents.items():
            agent.send("news", paths=list(shown.get(host, ())))
        return {host: agent.receive() for host, agent in self._agents.items()}

    def close(self) -> None:
        """End the agents."""
        self._stack.close()
