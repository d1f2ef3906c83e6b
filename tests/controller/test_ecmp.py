"""Routes for plain IPv6: the entries of each switch, and their changes when a link is withdrawn."""

import asyncio

import pytest

from mrclab.controller.ecmp import READER_ID, Group, Reader, Routing, read_routing, routing_of, updates
from mrclab.controller.fabric import FabricController
from mrclab.linux.errors import InputError
from mrclab.switches.spec import RunningSwitch
from mrclab.topologies import build_fabric
from tests.support.switch_process import PATIENCE_S, free_port, switch_process

pytestmark = pytest.mark.parallel

THREE_RACKS = "name: three\nplanes: 2\nt0: 3\nt1: 2\nhosts: 6\n"
FABRIC = build_fabric(THREE_RACKS, "three.yaml")


def routing(switch: str, *withdrawn: str, **weights: int) -> Routing:
    return routing_of(FABRIC, FABRIC.switch(switch), frozenset(withdrawn), weights)


def test_a_t0_has_a_port_for_each_of_its_hosts_and_a_group_for_each_other_rack() -> None:
    held = routing("p1-t0-1")
    where = {r.prefix: (r.port, r.group) for r in held.routes}
    own = {f"{FABRIC.host(f'h{i}').ports[1].address}/128" for i in (2, 3)}
    assert {p for p, (port, _) in where.items() if port is not None} == own
    assert {group for port, group in where.values() if port is None} == {1, 3}
    ups = tuple((FABRIC.switch("p1-t0-1").port_to(f"p1-t1-{i}").number, 1) for i in (0, 1))
    assert held.groups == (Group(1, ups), Group(3, ups))
    assert [m.port for m in held.members] == [1, 2, 3, 4]


def test_a_t1_has_one_way_to_each_host_and_no_groups() -> None:
    t1, held = FABRIC.switch("p0-t1-1"), routing("p0-t1-1")
    assert held.groups == ()
    assert {r.prefix: r.port for r in held.routes} == {
        f"{h.ports[0].address}/128": t1.port_to(f"p0-t0-{h.rack}").number for h in FABRIC.hosts
    }


def test_a_withdrawn_link_leaves_its_t0s_groups_and_those_of_others_towards_that_rack() -> None:
    cut = "p0-t0-0:p0-t1-1"

    def changed(switch: str) -> dict[int, list[int]]:
        made = updates(routing(switch), routing(switch, cut))
        return {u.group_id: [m.member_id for m in u.members or ()] for u in made}

    here, there = FABRIC.switch("p0-t0-0"), FABRIC.switch("p0-t0-2")
    only = here.port_to("p0-t1-0").number
    assert changed("p0-t0-0") == {2: [only], 3: [only]}
    assert changed("p0-t0-2") == {1: [there.port_to("p0-t1-0").number]}
    for untouched in ("p0-t1-0", "p0-t1-1", "p1-t0-0"):
        assert changed(untouched) == {}


def test_weights_are_those_of_the_uplink() -> None:
    held = routing("p0-t0-0", **{"p0-t0-0:p0-t1-1": 3})
    assert [weight for _, weight in held.groups[0].ports] == [1, 3]


def test_with_structured_evs_a_t0_leaves_the_way_to_other_racks_to_the_ev() -> None:
    t0 = FABRIC.switch("p1-t0-1")
    held = routing_of(FABRIC, t0, structured=True)
    assert held.groups == ()
    assert held.readers == (Reader(shift=18, mask=0x3FF),)
    assert [u.number for u in held.uplinks] == [0, 1]
    assert [u.way.port for u in held.uplinks] == [t0.port_to(f"p1-t1-{i}").number for i in (0, 1)]
    own = {f"{FABRIC.host(f'h{i}').ports[1].address}/128" for i in (2, 3)}
    assert {r.prefix for r in held.routes if r.port == READER_ID} == {
        f"{h.ports[1].address}/128" for h in FABRIC.hosts if h.rack != 1
    }
    assert {r.prefix for r in held.routes if r.port != READER_ID} == own


def test_a_t1_routes_down_alike_with_structured_evs() -> None:
    t1 = FABRIC.switch("p0-t1-1")
    assert routing_of(FABRIC, t1, structured=True) == routing("p0-t1-1")


@pytest.mark.root
def test_a_switch_holds_its_routes_and_follows_withdrawals() -> None:
    fabric = build_fabric("name: two\nplanes: 1\nt0: 2\nt1: 2\nhosts: 2\n", "two.yaml")
    cut = ("p0-t0-1", "p0-t1-0")  # p0-t0-0 must no longer use p0-t1-0 for rack 1

    async def story(port: int) -> None:
        running = [RunningSwitch("p0-t0-0", 1, f"127.0.0.1:{port}")]
        async with FabricController(fabric, running) as controller:
            await controller.programmed(timeout_s=PATIENCE_S)
            switch, routes = controller.switches["p0-t0-0"], controller.ecmp
            assert await read_routing(switch) == Routing()
            await routes.install()
            held = await read_routing(switch)
            assert held == routes.wanted("p0-t0-0") != Routing()
            assert await controller.verify() == ()  # the SRv6 entries do not count as drift
            await routes.withdraw(*cut)
            fewer = await read_routing(switch)
            assert fewer == routes.wanted("p0-t0-0") != held
            await routes.withdraw("p0-t0-0", "p0-t1-1")
            lonely = await read_routing(switch)
            assert lonely == routes.wanted("p0-t0-0")
            assert lonely.groups == ()
            assert len(lonely.routes) == 1  # the route to the switch's own host
            await routes.restore("p0-t0-0", "p0-t1-1")
            await routes.restore(*cut)
            assert await read_routing(switch) == held
            with pytest.raises(InputError, match="only one"):
                await routes.withdraw("h0", "p0-t0-0")
            with pytest.raises(InputError, match="no link"):
                await routes.withdraw("p0-t0-0", "p0-t0-1")
            # A changed weight makes the present entries wrong, so install() replaces all of them.
            routes._weights["p0-t0-0:p0-t1-1"] = 3
            await routes.install()
            weighted = await read_routing(switch)
            assert weighted == routes.wanted("p0-t0-0") != held
            await routes.install(structured=True)
            by_ev = await read_routing(switch)
            assert by_ev == routes.wanted("p0-t0-0")
            assert by_ev.readers
            assert len(by_ev.uplinks) == 2
            with pytest.raises(InputError, match="no route to withdraw"):
                await routes.withdraw(*cut)
            await routes.install()
            assert await read_routing(switch) == weighted

    port = free_port()
    with switch_process(port):
        asyncio.run(story(port))


def test_the_last_way_to_a_rack_takes_its_routes_along() -> None:
    cut = [f"p0-t0-2:p0-t1-{i}" for i in (0, 1)]
    held = routing("p0-t0-0", *cut)
    assert [g.number for g in held.groups] == [2]
    assert len(held.routes) == 4
    assert routing("p0-t0-2", *cut).groups == ()


def test_every_t0_reaches_every_host() -> None:
    for switch in FABRIC.switches:
        assert len(routing(switch.name).routes) == len(FABRIC.hosts)
