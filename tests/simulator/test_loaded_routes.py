"""Switches that choose uplinks by load, for each frame or for each flowlet."""

from __future__ import annotations

import pytest

from mrclab.hosts.rdma.events import ReceiveCompleted
from mrclab.hosts.roce import RoceConfig
from mrclab.simulator.network import Choice
from tests.simulator.test_network import World, fast_fabric

PLAIN = RoceConfig(encapsulation="plain", window_bytes=1 << 20, dcqcn=None)


def world(choice: Choice, flowlet_ns: int = 10_000) -> World:
    made = World(fast_fabric(), config=PLAIN)
    made.network.flowlet_ns = flowlet_ns
    made.network.route(choice=choice)
    return made


def uplinks(made: World) -> list[int]:
    """Return the number of packets on each uplink of h0's T0s, the largest first."""
    ports = made.network.links.items()
    found = (port.packets for (near, far), port in ports if "t0-0" in near and "t1" in far)
    return sorted(found, reverse=True)


@pytest.mark.parametrize("choice", ["hash", "flowlet"])
def test_a_flow_without_pauses_keeps_its_uplink(choice: Choice) -> None:
    made = world(choice)
    data, region = made.write("h0", "h3", 400_000)
    made.run()
    assert bytes(region.view) == data
    assert uplinks(made)[0] == -(-400_000 // 4096)
    assert uplinks(made)[1] == 0


def test_frames_that_follow_one_another_spread_by_load() -> None:
    made = world("adaptive")
    data, region = made.write("h0", "h3", 65_536)
    made.run()
    assert bytes(region.view) == data
    assert len(made.listeners["h3"].of(ReceiveCompleted)) == 1
    used = [count for count in uplinks(made) if count]
    assert len(used) > 1
    assert max(used) - min(used) <= 1


def test_a_flow_may_take_another_uplink_after_a_pause() -> None:
    made = world("flowlet", flowlet_ns=1_000)
    for _ in range(8):
        made.write("h0", "h3", 4096)
        made.run(50)
    assert len([count for count in uplinks(made) if count]) > 1
