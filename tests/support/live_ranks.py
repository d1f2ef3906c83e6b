"""Ranks that run as processes on the hosts of a running fabric for one job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from mrclab.experiments.live.drivers.ranks import connect
from mrclab.hosts.worker import RemoteAgent
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import fabric_text

LEAD_NS = 100_000_000
ALL_REDUCE = {"dtype": "int32", "sizes_bytes": [1 << 20], "iterations": 1, "warmup_iterations": 0}


def run_ranks(
    network: FabricNetwork,
    hosts: Sequence[str],
    transport: Mapping[str, Any],
    out: Path,
    job: str = "all-reduce",
    params: Mapping[str, Any] = ALL_REDUCE,
    timeout_s: float = 60.0,
) -> dict[str, int]:
    """Run a job on these hosts and return the sum of all ranks' counters. The job checks its own data."""
    fabric = network.fabric
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                RemoteAgent(host, partial(network.spawn, host), module="mrclab.hosts.collectives.rank")
            )
            for host in hosts
        ]
        for number, rank in enumerate(ranks):
            rank.send(
                "open",
                topology_yaml=fabric_text(fabric),
                host=rank.host,
                ranks_here=[number],
                ranks=len(ranks),
                transport={"propagation_ns": 0, **transport},
                job={"kind": job, "params": dict(params)},
                seed=1,
                series_ns=1_000_000,
                cpu=None,
                alone=False,
            )
        connect(ranks, timeout_s)
        start_ns = time.monotonic_ns() + LEAD_NS
        for rank in ranks:
            rank.send("run", start_ns=start_ns, measure_ns=start_ns, denied=[])
        for rank in ranks:
            answer = rank.receive(timeout_s)
            assert answer["problem"] is None, answer
            assert answer["failure"] is None, answer
        counters: dict[str, int] = {}
        for number, rank in enumerate(ranks):
            saved = rank.call("save", paths=[str(out / f"{number}.npz")], logs=[str(out / f"{number}.jsonl")])
            for name, count in saved["counters"].items():
                counters[name] = counters.get(name, 0) + count
    return counters
