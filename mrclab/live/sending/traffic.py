"""The traffic of the live lab: its senders, and the observations at every turn.

A transport's traffic is either streams between agents (`mrclab.live.sending.agents`), or a job of rank
processes (`mrclab.live.sending.ranks`): an all-reduce, or TCP, which agents do not speak.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from mrclab.live.plan import TrafficPlan
from mrclab.testbed.network import FabricNetwork


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction of a connection: its QPNs are those in packets to source and target, 0 for TCP."""

    source: str
    target: str
    source_qpn: int = 0
    target_qpn: int = 0


@dataclass(frozen=True, slots=True)
class News:
    """The observations of a transport at one turn."""

    placed: Sequence[tuple[int, int]]
    """For each flow: the time of the query (monotonic, ns), and the payload bytes placed so far."""
    sent: int
    resent: int
    """Packets of all flows so far."""
    failed: bool
    """True once a connection has given up."""
    paths: list[list[int]]
    """Those of the flow that is shown, a row each as in `mrclab.hosts.observation.path_rows`."""
    events: Sequence[tuple[str, dict[str, Any]]]
    """By host, what became of paths since the last turn."""
    steps: Sequence[tuple[int, int, str]] = ()
    """Steps of an all-reduce since the last turn: number, duration in us, and the host that ended last."""


class Traffic(Protocol):
    """The flows of one transport, running until ``close``."""

    name: str
    flows: tuple[Flow, ...]

    @property
    def hosts(self) -> Sequence[str]:
        """The hosts with a process of this traffic."""

    def news(self, shown: int) -> News:
        """Ask all processes; ``shown`` is the flow whose paths are wanted.

        Raise AgentError if a process is gone.
        """

    def close(self) -> None:
        """End the processes."""


class ProcessTraffic(ABC):
    """The processes of one transport, in the hosts' namespaces: all of them are started, or none."""

    def __init__(self, network: FabricNetwork, name: str, plan: TrafficPlan, attempt: int) -> None:
        """Start and connect the processes. ``attempt`` counts how often that was done: QPNs differ each time.

        Raise AgentError if one refuses.
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
        """Start and connect the processes, hand them to the stack, and set ``flows``."""

    def close(self) -> None:
        """See Traffic."""
        self._stack.close()
