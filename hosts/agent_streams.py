"""Open the NICs of agents, connect their queue pairs, and prepare streams between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.worker import RemoteAgent
from mrclab.topologies import Fabric, fabric_text

End = tuple[str, int]
"""One end of a stream: a host, and the number of one of its queue pairs, from 0."""


class AgentStreams:
    """Agents with open NICs, by host. See `mrclab.hosts.agent` for the requests."""

    def __init__(
        self,
        agents: Mapping[str, RemoteAgent],
        fabric: Fabric,
        options: Callable[[str], Mapping[str, Any]],
    ) -> None:
        """Open the NIC of each agent, all at the same time.

        ``options`` returns the parameters of a host's ``open`` request, without the host and the fabric.
        Raise AgentError if an agent refuses.
        """
        self._agents = agents
        text = fabric_text(fabric)
        for host, agent in agents.items():
            agent.send("open", topology_yaml=text, host=host, **options(host))
        self.opened: Mapping[str, Mapping[str, Any]] = {host: a.receive() for host, a in agents.items()}

    def qpn(self, end: End) -> int:
        """Return the queue pair number of an end."""
        host, qp = end
        return int(self.opened[host]["qps"][qp]["qpn"])

    def connect(self, end: End, peer: End) -> None:
        """Connect a queue pair to its peer. The peer needs a second call, with the two ends exchanged."""
        (host, qp), (there, peer_qp) = end, peer
        self._agents[host].call("connect", qp=qp, peer=there, attributes=self.opened[there]["qps"][peer_qp])

    def prepare(self, source: End, target: End, plan: StreamPlan) -> None:
        """Prepare a stream at both ends. The source begins to send when it gets a ``start`` request."""
        remote = self._agents[target[0]].call("receive", qp=target[1], plan=asdict(plan))
        self._agents[source[0]].call("send", qp=source[1], plan=asdict(plan), remote=remote)
