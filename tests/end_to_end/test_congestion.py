"""Two hosts write to a third: what NSCC leaves of the queue in front of it, and what a fixed window does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hosts.streams.stream import StreamPlan
from testbed.network import FabricNetwork
from tests.support.agents import incast, incast_network

pytestmark = [pytest.mark.root]

MESSAGES = 60
PLAN = StreamPlan(32768, 1_000_000_000, seed=3)


@dataclass(frozen=True)
class Seen:
    """What one control did: trims that the receiver saw, and the longest smoothed RTT."""

    trims: int
    srtt_ns: int


def run(network: FabricNetwork, config: dict[str, Any]) -> Seen:
    """Both senders write as fast as they may, until each has had so many messages acknowledged."""
    with incast(network, ("h0", "h1"), "h2", config, PLAN) as both:
        both.calibrate()
        for agent in both.senders.values():
            agent.call("start")
        srtt, left = 0, set(both.senders)
        while left:
            # A status takes a while to come on a busy machine: nothing here depends on when.
            for host, agent in both.senders.items():
                status = agent.call("status")
                assert status["failed"] is None
                srtt = max(srtt, status["counters"]["srtt_ns"])
                if status["completed"] >= MESSAGES:
                    left.discard(host)
        states = both.stop(timeout_s=60)
        assert all(state["problem"] is None and state["received"] >= MESSAGES for state in states)
        return Seen(sum(state["counters"]["trims_received"] for state in states), srtt)


def test_nscc_keeps_an_incast_below_the_depth_at_which_switches_trim(tmp_path: Path) -> None:
    with incast_network(tmp_path) as (network, _):
        fixed = run(network, {"cwnd_bytes": 64 * 4096})
        nscc = run(network, {"congestion": "nscc"})
    assert fixed.trims > 50, "the fixed windows fill the queue up to where it is trimmed"
    assert nscc.trims <= fixed.trims // 20
    assert nscc.srtt_ns < fixed.srtt_ns / 2
