"""Agents that write from some hosts of a running testbed to one host, controlled as in experiments."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mrclab.hosts.agent_streams import AgentStreams
from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.worker import RemoteAgent
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from tests.support.command import Mrclab

# The rate is low, so that the link is the bottleneck and not a CPU.
INCAST_TOPOLOGY = """
name: incast
planes: 2
t0: 2
t1: 2
hosts: 4
links:
  host: {rate: 20 Mbit/s}
  fabric: {rate: 100 Mbit/s}
"""


@dataclass(frozen=True)
class Incast:
    """The senders, each with one queue pair, and the host to which they write."""

    senders: Mapping[str, RemoteAgent]
    sink: RemoteAgent

    def calibrate(self) -> int:
        """Measure the base RTT of each sender. Return the largest base RTT, in ns."""
        return max(int(agent.call("calibrate")["base_rtt_ns"]) for agent in self.senders.values())

    def stop(self, timeout_s: float) -> list[dict[str, Any]]:
        """Stop the streams. Return the sink's status for each stream after everything is delivered."""
        for agent in self.senders.values():
            agent.call("stop")
        for agent in self.senders.values():
            agent.send("wait", what="drained", timeout_s=timeout_s)
        assert all(agent.receive(2 * timeout_s)["holds"] for agent in self.senders.values())
        return [self.sink.call("status", qp=qp) for qp in range(len(self.senders))]


@contextmanager
def incast(
    network: FabricNetwork, senders: tuple[str, ...], sink: str, config: Mapping[str, Any], plan: StreamPlan
) -> Iterator[Incast]:
    """Start the agents and connect them, ready to send."""
    agents: dict[str, RemoteAgent] = {}
    try:
        for host in (*senders, sink):
            agents[host] = RemoteAgent(host, partial(network.spawn, host))
        options = {"config": dict(config), "seed": 1, "cpu": None, "realtime": False}
        streams = AgentStreams(
            agents,
            network.fabric,
            lambda host: {**options, "qps": len(senders) if host == sink else 1},
        )
        for qp, host in enumerate(senders):
            streams.prepare((host, 0), (sink, qp), plan)
            streams.connect((sink, qp), (host, 0))
            streams.connect((host, 0), (sink, qp))
        yield Incast({host: agents[host] for host in senders}, agents[sink])
    finally:
        for agent in agents.values():
            agent.close()


@contextmanager
def incast_network(directory: Path) -> Iterator[tuple[FabricNetwork, Mrclab]]:
    """Bring up INCAST_TOPOLOGY on the ebpf target. All names of this testbed have a random prefix."""
    (directory / "incast.yaml").write_text(INCAST_TOPOLOGY)
    names = Names.of_prefix(f"t{os.urandom(3).hex()}")
    runner = Mrclab(names)
    try:
        runner.ok("up", "--topology", str(directory / "incast.yaml"), "--target", "ebpf")
        yield FabricNetwork.attached(names), runner
        runner.ok("down")
    finally:
        runner("clean")
