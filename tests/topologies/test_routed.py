"""The plan of a routed fabric: AS numbers, addresses, configuration, and the expected routes."""

import pytest

from mrclab.testbed.frr.config import bfdd_conf, bgpd_conf, zebra_conf
from mrclab.topologies import Fabric, load_fabric
from mrclab.topologies.routed import T1_AS, Timers, expected_routes, plan


@pytest.fixture(scope="module", params=["tiny", "lab", "wide"])
def fabric(request: pytest.FixtureRequest) -> Fabric:
    return load_fabric(request.param)


def test_both_ends_of_a_session_agree(fabric: Fabric) -> None:
    routers = {router.name: router for router in plan(fabric)}
    owner = {n.own: (router, n) for router in routers.values() for n in router.neighbours}
    assert len(owner) == 2 * sum(link.kind == "fabric" for link in fabric.links)
    for router in routers.values():
        for neighbour in router.neighbours:
            other, back = owner[neighbour.address]
            assert (back.address, neighbour.remote_as) == (neighbour.own, other.asn)
            assert int(back.own) ^ int(neighbour.own) == 1  # the two addresses of a /127
            assert fabric.has_link(router.name, other.name)
    assert len({router.router_id for router in routers.values()}) == len(routers)


def test_t1s_of_a_plane_share_an_as_number_and_t0s_do_not(fabric: Fabric) -> None:
    asns = {router.name: router.asn for router in plan(fabric)}
    for switch in fabric.switches:
        assert (asns[switch.name] == T1_AS) == (switch.tier == "t1")
    for plane in range(fabric.planes):
        t0s = [asns[s.name] for s in fabric.switches if s.plane == plane and s.tier == "t0"]
        assert len(t0s) == len(set(t0s))


def test_every_host_is_behind_the_t0_of_its_rack_in_every_plane(fabric: Fabric) -> None:
    found = {(router.name, host.address) for router in plan(fabric) for host in router.hosts}
    assert found == {(port.t0, port.address) for host in fabric.hosts for port in host.ports}


def test_a_t0_expects_a_way_by_every_t1(fabric: Fabric) -> None:
    for name, ways in expected_routes(fabric).items():
        t0 = fabric.switch(name)
        others = [host for host in fabric.hosts if host.rack != t0.index]
        assert set(ways) == {host.ports[t0.plane].address for host in others}
        assert set(ways.values()) == {len(list(fabric.t1s(t0.plane)))}


def test_the_configuration_says_what_the_plan_says() -> None:
    router = plan(load_fabric("tiny"))[0]
    timers = Timers(keepalive_s=2, hold_s=6, bfd_interval_ms=50)
    zebra, bgpd, bfdd = zebra_conf(router), bgpd_conf(router, timers), bfdd_conf(router, timers)
    for neighbour in router.neighbours:
        assert f"interface {neighbour.ifname}\n ipv6 address {neighbour.own}/127\n" in zebra
        assert f" neighbor {neighbour.address} remote-as {neighbour.remote_as}\n" in bgpd
        assert f" neighbor {neighbour.address} bfd profile fabric\n" in bgpd
    assert " timers bgp 2 6\n" in bgpd
    assert "  detect-multiplier 3\n  receive-interval 50\n  transmit-interval 50\n" in bfdd
    assert " bfd" not in bgpd_conf(router, Timers())


def test_a_hold_time_is_three_seconds_or_more() -> None:
    with pytest.raises(ValueError, match="RFC 4271"):
        Timers(hold_s=2)


@pytest.mark.parametrize("detection_ms", [30, 150, 300, 2997, 3000, 9000, 180_000])
def test_timers_by_the_time_they_take(detection_ms: int) -> None:
    timers = Timers.detecting_in(detection_ms * 10**6)
    assert detection_ms == (timers.bfd_interval_ms * timers.bfd_multiplier or timers.hold_s * 1000)


@pytest.mark.parametrize("detection_ms", [0, 10, 29, 100, 2999, 3001])
def test_times_that_no_protocol_can_do(detection_ms: int) -> None:
    with pytest.raises(ValueError, match=r"BFD gives up|hold time"):
        Timers.detecting_in(detection_ms * 10**6)
