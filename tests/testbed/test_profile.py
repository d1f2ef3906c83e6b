"""`mrclab profile` shows and changes the profiles of NICs while they work."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from mrclab.hosts.streams.stream import StreamPlan
from mrclab.hosts.worker import RemoteAgent
from mrclab.testbed.network import FabricNetwork
from tests.support.agents import Incast, incast
from tests.support.command import Mrclab, up

PLAN = StreamPlan(8192, 20_000_000, 1)
MESSAGES = 300
"""The number of messages that are sent in about a second."""


@pytest.fixture
def streaming() -> Iterator[tuple[Mrclab, Incast]]:
    """Start a stream from h0 to h3 of `tiny`. It runs until the end of the tests."""
    with up("tiny", "ebpf") as testbed:
        network = FabricNetwork.attached(testbed.mrclab.names)
        with incast(network, ("h0",), "h3", {}, PLAN) as agents:
            agents.senders["h0"].call("start")
            yield testbed.mrclab, agents


def sent(mrclab: Mrclab, agent: RemoteAgent) -> list[int]:
    """Return the number of packets that h0 sends into each plane during MESSAGES messages."""

    def counted() -> list[int]:
        switches = mrclab.status()["switches"]
        return [switches[f"p{plane}-t0-0"]["counters"]["rx"]["1"]["packets"] for plane in (0, 1)]

    before, wanted = counted(), agent.call("status")["completed"] + MESSAGES
    while agent.call("status")["completed"] < wanted:
        pass
    return [now - then for now, then in zip(counted(), before, strict=True)]


@pytest.mark.root
def test_an_operator_drains_a_plane_and_brings_it_back(
    streaming: tuple[Mrclab, Incast],
) -> None:
    mrclab, agents = streaming
    agent = agents.senders["h0"]
    assert min(sent(mrclab, agent)) > MESSAGES / 2, "both planes carry data"
    assert mrclab.ok("profile", "deny", "h0", "--port", "1").startswith("h0: denied 2 EVs of port 1")
    planes = sent(mrclab, agent)
    assert planes[0] == 0
    assert planes[1] >= 2 * MESSAGES
    shown = json.loads(mrclab.ok("profile", "show", "h0", "--evs", "--json"))["h0"][0]["evs"][0]
    assert shown["states"] == {"DENIED": 2, "GOOD": 2}
    assert {ev.partition("@")[2] for ev, state in shown["evs"].items() if state == "DENIED"} == {"1"}
    assert mrclab.ok("profile", "allow", "h0", "--port", "1").startswith("h0: allowed 2 EVs of port 1")
    assert min(sent(mrclab, agent)) > MESSAGES / 2
    status = agents.stop(10.0)[0]
    counters = agent.call("status")["counters"]
    assert (counters["lost"], counters["retransmitted"], status["problem"]) == (0, 0, None)
