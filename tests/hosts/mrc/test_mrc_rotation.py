"""Options of the rotation: use all links evenly; share one set of EVs among all queue pairs to a peer."""

import random
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.events import RetireReason
from mrclab.hosts.mrc.evs.ev_set import EvSet
from mrclab.hosts.nic.routes import hashed_paths
from mrclab.hosts.rdma.events import EvState
from mrclab.hosts.rdma.paths import RemotePaths
from mrclab.topologies.ev_paths import hashed_path
from mrclab.topologies.shipped import load_fabric
from tests.support.mrc_sim import address, port_addresses, remote_paths


def on_uplinks(paths: RemotePaths, uplinks: list[int]) -> RemotePaths:
    """Return the paths with other uplinks. In every plane, path i gets the uplink ``uplinks[i]``."""
    planes = [
        replace(plane, paths=tuple(replace(p, uplink=n) for p, n in zip(plane.paths, uplinks, strict=True)))
        for plane in paths.planes
    ]
    return RemotePaths(tuple(planes))


def stratified(uplinks: list[int], planes: int = 1, seed: int = 1) -> EvSet:
    paths = on_uplinks(remote_paths(0, 1, planes, len(uplinks)), uplinks)
    return EvSet(7, paths, MrcConfig(rotation="stratified"), random.Random(seed), lambda event: None)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=24), st.integers(1, 3), st.integers(0, 9))
def test_links_take_turns_whatever_their_number_of_evs(uplinks, planes, seed):
    evs, links = stratified(uplinks, planes, seed), len(set(uplinks))
    if links == len(uplinks):
        return
    rounds = 8 * len(uplinks)
    picked = [evs.pick() for _ in range(planes * links * rounds)]
    for plane in range(planes):
        mine = [ev for ev in picked if ev.port == plane]
        for begin in range(0, len(mine), links):
            assert len({ev.path.uplink for ev in mine[begin : begin + links]}) == links
    shares = Counter(ev.value for ev in picked)
    for ev in evs.by_value.values():
        even = rounds / uplinks.count(ev.path.uplink)
        assert abs(shares[ev.value] - even) <= 1, "the EVs of a link take turns"


def test_a_link_with_retired_evs_keeps_its_share():
    evs = stratified([0, 0, 0, 1, 1, 1])
    for ev in [ev for ev in evs.by_value.values() if ev.path.uplink == 0][:2]:
        evs.on_lost(0, ev, 1, RetireReason.LOSS)
    for _ in range(20):
        evs.pick()
    assert Counter(evs.pick().path.uplink for _ in range(200)) == {0: 100, 1: 100}


@pytest.mark.parametrize("uplinks", [[0, 1, 2, 3], [None, 0, 0, 1]])
def test_without_known_shared_links_the_rotation_is_the_shuffled_one(uplinks):
    evs = stratified(uplinks)
    paths = on_uplinks(remote_paths(0, 1, 1, 4), uplinks)
    usual = EvSet(7, paths, MrcConfig(), random.Random(1), lambda event: None)
    assert [evs.pick().value for _ in range(80)] == [usual.pick().value for _ in range(80)]


def test_hashed_paths_name_the_uplink_that_the_switches_choose():
    fabric = load_fabric("lab")
    config = MrcConfig(ev_mode="ecmp", rotation="stratified", max_active_evs=64)
    src, dst = fabric.hosts[0].name, fabric.hosts[-1].name
    found = hashed_paths(fabric, src, dst, config, random.Random(3))
    for plane in found.planes:
        for path in plane.paths:
            assert path.uplink == hashed_path(fabric, src, dst, path.ev, config.reading.udp_port).t1
    unknown = hashed_paths(fabric, src, dst, replace(config, rotation="shuffled"), random.Random(3))
    assert {path.uplink for plane in unknown.planes for path in plane.paths} == {None}


def connected(ev_sets: str, peers: list[int]) -> tuple[Endpoint, list[int]]:
    """Return an endpoint with a queue pair to each of these nodes."""
    options = MrcConfig(ev_sets=ev_sets)
    near = Endpoint(port_addresses(0, 2), options, random.Random(1))
    qpns = []
    for node in peers:
        far = Endpoint(port_addresses(node, 2), options, random.Random(node))
        qpn = near.create_qp()
        near.connect(qpn, far.local_attributes(far.create_qp()), remote_paths(0, node, 2, 4))
        qpns.append(qpn)
    return near, qpns


def test_queue_pairs_to_a_peer_share_a_set_if_the_option_asks_for_it():
    near, qpns = connected("peer", [1, 1, 2])
    one, two, other = (near.qps[qpn].evs for qpn in qpns)
    assert one is two
    assert one is not other
    near, qpns = connected("queue-pair", [1, 1])
    assert near.qps[qpns[0]].evs is not near.qps[qpns[1]].evs


def test_a_path_that_fails_for_one_queue_pair_is_retired_for_all_to_that_peer():
    near, (first, second, other) = connected("peer", [1, 1, 2])
    evs = near.qps[second].evs
    evs.on_lost(0, evs.planes[0].active[0], 1, RetireReason.LOSS)
    bad = [sum(ev.state is EvState.ASSUMED_BAD for ev in near.ev_counters(qpn)) for qpn in (first, other)]
    assert bad == [1, 0]


def test_the_last_queue_pair_of_a_shared_set_takes_it_along():
    near, (first, second) = connected("peer", [1, 1])
    kept = near.qps[second].evs
    near.destroy_qp(first)
    third = near.create_qp()
    far = Endpoint(port_addresses(1, 2), MrcConfig(), random.Random(5))
    near.connect(third, far.local_attributes(far.create_qp()), remote_paths(0, 1, 2, 4))
    assert near.qps[third].evs is kept
    near.destroy_qp(second)
    near.destroy_qp(third)
    last = near.create_qp()
    near.connect(last, far.local_attributes(far.create_qp()), remote_paths(0, 1, 2, 4))
    assert near.qps[last].evs is not kept
    assert address(1, 0) in near.qps[last].peers


def test_unknown_orders_and_owners_are_refused():
    with pytest.raises(ValueError, match="shuffled or stratified"):
        MrcConfig(rotation="fast")
    with pytest.raises(ValueError, match="queue-pair or peer"):
        MrcConfig(ev_sets="nic")
