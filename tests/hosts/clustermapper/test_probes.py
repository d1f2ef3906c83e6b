"""The plan of Clustermapper's probes: which routes they take."""

import itertools

import pytest
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from mrclab.hosts.clustermapper.probes import ID_OFFSET, PROBE_UDP_PORT, ProbePlan
from mrclab.topologies import load_fabric

TOPOLOGIES = ("tiny", "lab", "wide")


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_every_round_tests_every_link(topology: str) -> None:
    fabric = load_fabric(topology)
    plan = ProbePlan(fabric)
    for number in range(8):
        for suspects in ((), ("p0-t0-1",)):
            tested = {link for route in plan.round(number, suspects) for link in route.links}
            assert tested == {link.name for link in fabric.links}


def test_no_two_links_of_a_t0_share_their_company_for_long() -> None:
    plan = ProbePlan(load_fabric("lab"))
    for link in plan.links:
        shared = []
        for number in range(6):
            routes = [r for r in plan.round(number) if link in r.links]
            shared.append({other for r in routes for other in r.links if other != link})
        assert not set.intersection(*shared)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_a_probe_goes_out_and_back_as_its_segments_say(topology: str) -> None:
    fabric = load_fabric(topology)
    plan = ProbePlan(fabric)
    for route in plan.routes[:: max(len(plan.routes) // 300, 1)]:  # only some routes, because scapy is slow
        frame = Ether(route.probe(7))
        nic = fabric.host(route.host).ports[route.plane]
        nodes = [route.host] + [
            fabric.node_of(u)
            for u in fabric.plan.usids(
                fabric.plan.container(
                    [int.from_bytes(route.frame[38 + 4 + 2 * i : 44 + 2 * i], "big") for i in range(6)]
                )
            )
        ]
        assert nodes[-1] == route.host
        assert {fabric.link(a, b).name for a, b in itertools.pairwise(nodes)} == set(route.links)
        assert frame.src == nic.mac.hex(":")
        assert frame[IPv6].tc >> 2 == 46
        assert frame.dport == PROBE_UDP_PORT
        assert int.from_bytes(route.probe(7)[ID_OFFSET : ID_OFFSET + 8], "big") == 7
        assert len(frame[IPv6].payload) == frame[IPv6].plen
