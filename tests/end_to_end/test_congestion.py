"""What live endpoints make of what switches do to their frames: marks and trims in an incast, and damage."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hosts.remote import RemoteAgent
from hosts.stream import StreamPlan
from testbed.network import FabricNetwork
from testbed.topology_text import topology_text
from tests.end_to_end.conftest import Mrclab, Up
from topologies import load_fabric

pytestmark = [pytest.mark.root, pytest.mark.slow]

MESSAGE_BYTES, MESSAGES = 1 << 16, 40
PATIENCE_S = 60.0
# Two hosts fill the ways up of their rack, and more comes down than the last hop to the third can carry.
NARROW = """name: narrow
planes: 2
t0: 2
t1: 2
hosts: 4
links:
  host: {rate: 40 Mbit/s}
  fabric: {rate: 30 Mbit/s}
"""


@dataclasses.dataclass
class Stream:
    """One sender to one queue pair of the receiver."""

    sender: RemoteAgent
    receiver: RemoteAgent
    qp: int

    def finish(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Waits until enough has been sent and all of that has arrived; what both ends say then."""
        while self.sender.ask("status")["posted"] < MESSAGES:
            self.sender.ask("wait", what="restored", timeout_s=0.1)
        self.sender.ask("stop")
        assert self.sender.ask("wait", what="drained", timeout_s=PATIENCE_S / 3)["holds"]
        return self.sender.ask("status"), self.receiver.ask("status", qp=self.qp)


def streams(up: Up, stack: ExitStack, sources: tuple[str, ...], to: str, **config: object) -> list[Stream]:
    """Agents on the hosts, a stream from each source, started."""
    network = FabricNetwork.attached(up.mrclab.names)
    fabric = (up.fabric.name, topology_text(up.fabric))

    def agent(host: str) -> RemoteAgent:
        return stack.enter_context(RemoteAgent(host, partial(network.spawn, host)))

    def opened(agent: RemoteAgent, qps: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = agent.ask(
            "open",
            topology=fabric[0],
            topology_yaml=fabric[1],
            host=agent.host,
            config=config,
            seed=1,
            cpu=None,
            realtime=False,
            qps=qps,
        )["qps"]
        return found

    receiver = agent(to)
    theirs = opened(receiver, len(sources))
    made = []
    for qp, source in enumerate(sources):
        sender = agent(source)
        (ours,) = opened(sender, 1)
        plan = dataclasses.asdict(StreamPlan(MESSAGE_BYTES, 10**9, seed=qp))
        sender.ask("send", plan=plan, remote=receiver.ask("receive", qp=qp, plan=plan))
        receiver.ask("connect", qp=qp, peer=source, attributes=ours)
        sender.ask("connect", peer=to, attributes=theirs[qp])
        made.append(Stream(sender, receiver, qp))
    for stream in made:
        stream.sender.ask("start")
    return made


def check_all_arrived(sent: dict[str, Any], got: dict[str, Any]) -> None:
    assert sent["failed"] is None
    assert got["problem"] is None
    assert got["received"] == sent["posted"] >= MESSAGES
    assert got["bytes_delivered"] == sent["posted"] * MESSAGE_BYTES


@pytest.fixture
def narrow(mrclab: Mrclab, tmp_path: Path) -> Iterator[Up]:
    topology = tmp_path / "narrow.yaml"
    topology.write_text(NARROW)
    mrclab.ok("up", "--topology", str(topology), "--target", "ebpf")
    yield Up(mrclab, load_fabric(str(topology)))
    mrclab.ok("down")


def test_an_incast_is_marked_and_trimmed_and_loses_nothing(narrow: Up) -> None:
    with ExitStack() as stack:
        ends = [stream.finish() for stream in streams(narrow, stack, ("h0", "h1"), "h3")]
    for sent, got in ends:
        check_all_arrived(sent, got)
        sender, receiver = sent["counters"], got["counters"]
        # A trim is answered with a NACK, unless the packet has come on another path; and that has it sent
        # again at once.
        assert 0 < receiver["nacks_sent"] <= receiver["trims_received"]
        assert 0 < sender["nacks_received"] <= receiver["nacks_sent"]
        assert sender["retransmitted"] > 0
        assert receiver["ce_received"] > 0
        assert got["socket_drops"] == sent["socket_drops"] == 0
    switches = narrow.mrclab.status()["switches"]
    queues = [q for switch in switches.values() for q in switch["counters"]["queues"].values()]
    assert sum(q["marked"]["packets"] for q in queues) > 0
    trims = sum(q["trimmed"]["packets"] for q in queues)
    assert trims >= sum(got["counters"]["trims_received"] for _, got in ends)
    # Nothing that left a host was lost on its way: all was carried, whole or cut.
    assert [s["counters"]["drops"] for s in switches.values()] == [{}] * len(switches)


def test_what_a_link_damages_is_refused_by_the_icrc_and_sent_again(tiny: Up) -> None:
    link = "p0-t0-0:p0-t1-0"
    tiny.mrclab.ok("fault", "corruption", link, "--ratio", "0.2")
    try:
        with ExitStack() as stack:
            (stream,) = streams(tiny, stack, ("h0",), "h3")
            sent, got = stream.finish()
    finally:
        tiny.mrclab.ok("restore", link)
    check_all_arrived(sent, got)
    assert got["drops"]["bad_icrc"] > 0
    assert got["frame_drops"] == got["drops"]["bad_icrc"]
    assert sent["counters"]["retransmitted"] > 0
