"""Jobs of rank processes: an all-reduce over any transport, and flows over TCP. One rank on each host."""

from __future__ import annotations

import subprocess
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from mrclab.experiments.live.drivers.ranks import LEAD_NS, OPEN_TIMEOUT_S, connect
from mrclab.hosts.remote import RemoteAgent
from mrclab.hosts.transports import TRANSPORTS
from mrclab.live.plan import TrafficPlan
from mrclab.live.sending.agents import config_of
from mrclab.live.sending.traffic import Flow, News, ProcessTraffic
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import Fabric, fabric_text

MODULE = "mrclab.hosts.collectives.rank"
FOREVER_NS = 10**18
COMPUTE_NS = 20_000_000
"""The time of a step of the all-reduce before data is sent: the share of a step in which a GPU computes."""
DEPTH = 8
"""Messages of a TCP flow in flight."""


class RankTraffic(ProcessTraffic):
    """The job of one transport. See Traffic."""

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
        """See Traffic."""
        return tuple(self._hosts)

    def news(self, shown: int) -> News:
        """See Traffic."""
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
        """Return a rank's news. The answer to ``run`` may come before: then its job is over."""
        answer = process.receive()
        if "ranks" not in answer:
            self._ended = True
            answer = process.receive()
        return answer


class Steps:
    """The steps of all ranks, put together: a step is over when its last rank is."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._waiting: list[list[tuple[int, int, int]]] = [[] for _ in hosts]
        self._number = 0

    def add(self, rank: int, rows: Sequence[Sequence[int]]) -> None:
        """Take a rank's newest steps, as `TrainingJob.samples` has them."""
        self._waiting[rank] += [(start, reduced, end) for start, _, reduced, end in rows]

    def take(self) -> list[tuple[int, int, str]]:
        """Return the steps that are over and were not returned yet: number, us, the host that ended last."""
        found = []
        for rows in zip(*self._waiting, strict=False):
            self._number += 1
            took_ns = max(end for _, _, end in rows) - min(start for start, _, _ in rows)
            last = max(range(len(rows)), key=lambda rank: rows[rank][1])
            found.append((self._number, round(took_ns / 1e3), self._hosts[last]))
        for waiting in self._waiting:
            del waiting[: len(found)]
        return found
