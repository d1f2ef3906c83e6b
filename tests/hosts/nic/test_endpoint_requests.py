"""Endpoint requests through the verbs API, between simulated NICs without a queue pair."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from mrclab.experiments.spec.model import USUAL_VIRTUAL
from mrclab.experiments.virtual.fabric import VirtualFabric
from mrclab.experiments.virtual.nics import VirtualDevice
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.hosts.verbs import Context, EndpointOp
from mrclab.hosts.worker import RemoteAgent
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import fabric_text, load_fabric
from tests.support.command import up


class Handing:
    """Passes the events of a NIC to a context."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def tick(self, now_ns: int) -> int | None:
        return None

    def take(self, event: Event) -> None:
        self._context.hand_out([event])


def contexts(options: dict[str, Any]) -> tuple[VirtualFabric, Context]:
    """Make a NIC without a queue pair at each host of `tiny`. Return the fabric and h0's context."""
    fabric = load_fabric("tiny")
    running = VirtualFabric(fabric, TRANSPORTS["mrc"], 1, 0, USUAL_VIRTUAL)
    made = []
    for host in fabric.hosts:
        nic = running.nic(host.name, options)
        made.append(Context(fabric, host.name, VirtualDevice(nic)))
        nic.programs.append(Handing(made[-1]))
    return running, made[0]


def test_a_batch_of_probes_crosses_the_fabric() -> None:
    running, context = contexts({})
    targets = [("h3", path.ev, path.plane + 1) for path in running.fabric.paths("h0", "h3")]
    asked = context.ask_endpoints(EndpointOp.EV_PROBE, targets)
    clock = running.network.clock
    clock.run(clock.now_ps + 10**10)
    assert sorted(answer.request_id for answer in context.responses) == sorted(asked)
    ports = {answer.request_id: answer.port + 1 for answer in context.responses}
    assert [ports[request] for request in asked] == [port for _, _, port in targets]
    times = [answer.t_ns for answer in context.responses]
    assert times == sorted(times)
    assert all(0 < (answer.rtt_ns or 0) < 10**6 for answer in context.responses)


def test_a_target_that_does_not_exist_is_refused_before_anything_is_sent() -> None:
    _, context = contexts({})
    ev = context.fabric.paths("h0", "h3")[0].ev
    for target in (("h0", ev, 1), ("h9", ev, 1), ("h3", ev, 2), ("h3", 0x1, 1), ("h3", ev, 0)):
        with pytest.raises(ValueError, match=r"host|EV"):
            context.ask_endpoints(EndpointOp.EV_PROBE, [target])


@pytest.mark.root
def test_agents_without_queue_pairs_probe_each_other() -> None:
    with up("tiny", "ebpf") as testbed, ExitStack() as stack:
        network = FabricNetwork.attached(testbed.mrclab.names)
        agents = {}
        for host in ("h0", "h3"):
            agent = stack.enter_context(RemoteAgent(host, partial(network.spawn, host)))
            agent.call(
                "open",
                topology="tiny",
                topology_yaml=fabric_text(network.fabric),
                host=host,
                config={"endpoint_timeout_ns": 10**10},  # large enough for any busy machine
                seed=1,
                cpu=None,
                realtime=False,
                qps=0,
            )
            agents[host] = agent
        targets = [{"host": "h3", "ev": p.ev, "port": p.plane + 1} for p in network.fabric.paths("h0", "h3")]
        asked = agents["h0"].call("ask", op="EV_PROBE", targets=targets)["requests"]
        answers: list[dict[str, Any]] = []
        while len(answers) < len(targets):
            answers += agents["h0"].call("answers")["answers"]
        assert sorted(answer["request"] for answer in answers) == sorted(asked)
        assert [answer["port"] for answer in answers if answer["rtt_ns"] is None] == []
        agents["h3"].close()
        agents["h0"].call("ask", op="EV_PROBE", targets=targets[:1])
        gone: list[dict[str, Any]] = []
        while not gone:
            gone = agents["h0"].call("answers")["answers"]
        assert gone[0]["rtt_ns"] is None
