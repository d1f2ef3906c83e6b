"""Several faults are at one place of a simulated fabric at the same time."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pytest

from mrclab.controller.queues import QueuePolicy
from mrclab.p4src.contract import QUEUE_MIN_FRAMES
from mrclab.simulator.faults import NetworkFaults
from mrclab.simulator.network import Network
from mrclab.topologies import build_fabric
from tests.simulator.test_port import packet

FABRIC = build_fabric(json.dumps({"name": "small", "planes": 1, "t0": 2, "t1": 2, "hosts": 2}), "small")
LINK = "h0:p0-t0-0"


class World:
    def __init__(self) -> None:
        self.network = Network(FABRIC, QueuePolicy())
        self.faults = NetworkFaults(self.network)

    def works(self) -> bool:
        links = self.network.links
        ends = ("h0", "p0-t0-0"), ("p0-t0-0", "h0")
        return not any(links[end].dead for end in ends) and not self.network.switches["p0-t0-0"].dead


MAKERS: dict[str, Callable[[World, bool], None]] = {
    "blackhole": lambda world, on: world.faults.blackhole(LINK, "both", on),
    "carrier": lambda world, on: world.faults.carrier(LINK, on),
    "port-down": lambda world, on: world.faults.port_down("h0-eth0", on),
    "switch-death": lambda world, on: world.faults.switch("p0-t0-0", on),
    "plane-death": lambda world, on: world.faults.plane(0, on),
}


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(MAKERS, 2)))
def test_a_place_works_again_when_all_its_faults_have_ended(first: str, second: str) -> None:
    world = World()
    MAKERS[first](world, True)
    MAKERS[second](world, True)
    MAKERS[first](world, False)
    assert not world.works()
    MAKERS[second](world, False)
    assert world.works()


def test_a_link_at_a_share_of_its_rate_lets_a_short_burst_through_and_loses_a_long_one() -> None:
    world = World()
    port = world.network.links["h0", "p0-t0-0"]
    world.faults.rate(LINK, "both", 0.1)
    mtu_bytes = FABRIC.link(*LINK.split(":")).profile.mtu_bytes
    burst = [port.survives(packet(mtu_bytes)) for _ in range(10 * QUEUE_MIN_FRAMES)]
    assert all(burst[:QUEUE_MIN_FRAMES])
    assert not any(burst[QUEUE_MIN_FRAMES + 1 :])
    world.faults.rate(LINK, "both", 0)
    assert port.survives(packet(mtu_bytes))
