"""Two hosts write to a third host. The test compares how NSCC and a fixed window fill the last queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mrclab.hosts.streams.stream import StreamPlan
from mrclab.testbed.network import FabricNetwork
from tests.support.agents import incast, incast_network

pytestmark = [pytest.mark.root]

MESSAGES = 60
PLAN = StreamPlan(32768, 1_000_000_000, seed=3)


def run(network: FabricNetwork, config: dict[str, Any], trims: int = 0) -> int:
    """Let both senders write as fast as they may. Return how many trimmed packets the receiver saw.

    Continue until ``MESSAGES`` messages of each sender are acknowledged, and ``trims`` packets were trimmed.
    """
    with incast(network, ("h0", "h1"), "h2", config, PLAN) as both:
        both.calibrate()
        for agent in both.senders.values():
            agent.call("start")
        left, seen = set(both.senders), 0
        while left or seen < trims:
            # On a busy machine a status arrives late. No check here depends on the time of its arrival.
            for host, agent in both.senders.items():
                status = agent.call("status")
                assert status["failed"] is None
                if status["completed"] >= MESSAGES:
                    left.discard(host)
            seen = sum(both.sink.call("status", qp=qp)["counters"]["trims_received"] for qp in range(2))
        states = both.stop(timeout_s=60)
        assert all(state["problem"] is None and state["received"] >= MESSAGES for state in states)
        return sum(state["counters"]["trims_received"] for state in states)


@pytest.mark.slow
def test_nscc_keeps_an_incast_below_the_depth_at_which_switches_trim(tmp_path: Path) -> None:
    with incast_network(tmp_path) as (network, _):
        nscc = run(network, {"congestion": "nscc"})
        # Fixed windows fill the queue again and again up to the depth at which switches trim.
        fixed = run(network, {"congestion": "fixed", "cwnd_bytes": 64 * 4096}, trims=max(50, 2 * nscc))
    assert fixed > 2 * nscc
