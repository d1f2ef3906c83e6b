"""Three tiers in virtual time, compared with formulas: delays, rates on full links, cuts, and hashes."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from benchmarks.kit.closed_forms import STILL, _First, payload_rate
from benchmarks.kit.loads import Load, frame_bytes
from mrclab.experiments.judging.scale import capacity_mbps
from mrclab.hosts.options import idle_rtt_ns
from mrclab.linux.errors import InputError
from mrclab.simulator.network import routes_of
from mrclab.topologies import Fabric, build_fabric
from mrclab.topologies.ev_paths import _way
from mrclab.topologies.model import require_live

GIGABITS = 100


def three_tiers(core_gigabits: int = GIGABITS, **differing: object) -> Fabric:
    """Return two pods, each with two racks and two T1s. Each T1 has two T2s: four paths between pods."""
    near = {"rate": f"{GIGABITS} Gbit/s", "delay": "500 ns"}
    inner = {"rate": f"{GIGABITS} Gbit/s", "delay": "725 ns"}
    core = {"rate": f"{core_gigabits} Gbit/s", "delay": "725 ns"}
    shape = {"planes": 1, "t0": 4, "t1": 2, "pods": 2, "t2": 2, "hosts": 8}
    links = {"host": near, "fabric": inner, "core": core, **differing}
    return build_fabric(json.dumps({"name": "three", **shape, "links": links}), "three")


def across(load: Load) -> list[float]:
    """Let every host of each pod send to a host of the other pod. Return each flow's share of its link."""
    for number in range(8):
        load.flow(f"h{number}", f"h{(number + 4) % 8}")
    rates, _, _ = load.measure(400_000)
    return [rate / payload_rate(GIGABITS) for rate in rates]


def test_a_packet_between_pods_takes_six_serialisations_and_six_delays() -> None:
    load = Load(three_tiers(), {}, 1)
    seen = _First(load, "p0-t0-3", "h7")
    load.flow("h0", "h7")
    load.run_ns(10_000)
    expected = 6 * frame_bytes() * 8 / GIGABITS + 2 * (500 + 725 + 725)
    assert seen.at_ns == pytest.approx(expected, rel=0.001)


def test_the_idle_round_trip_is_that_of_the_longest_path() -> None:
    one_way_ns = 6 * frame_bytes() * 8 / GIGABITS + 2 * (500 + 725 + 725)
    assert idle_rtt_ns(three_tiers(), "h0") == pytest.approx(one_way_ns + 2 * (500 + 725 + 725), rel=0.02)


def test_a_core_that_does_not_block_carries_all_hosts_at_once() -> None:
    parts = across(Load(three_tiers(), STILL, 1))
    # Acknowledgements of the other direction take a part of each link.
    assert min(parts) > 0.9
    assert sum(parts) / 8 > 0.94


def test_a_core_of_a_quarter_of_the_rate_carries_a_quarter() -> None:
    assert sum(across(Load(three_tiers(core_gigabits=25), STILL, 1))) / 8 == pytest.approx(0.25, rel=0.06)


def test_a_silent_cut_of_a_core_link_is_bypassed() -> None:
    load = Load(three_tiers(), {}, 1)
    load.flow("h0", "h7")
    load.run_ns(50_000)
    load.network.links["p0-t1-0", "p0-t2-1"].set_loss(1.0)
    rates, _, _ = load.measure(400_000)
    assert rates[0] / payload_rate(GIGABITS) > 0.98


def test_the_capacity_of_a_broken_core_is_that_of_the_paths_left() -> None:
    fabric = three_tiers(core_gigabits=25)
    whole = capacity_mbps(fabric, "h0", "h7", ())
    assert whole == 100_000
    assert capacity_mbps(fabric, "h0", "h7", ["p0-t1-0:p0-t2-1"]) == 75_000
    assert capacity_mbps(fabric, "h0", "h7", ["p0-t0-0:p0-t1-0"]) == 50_000
    assert capacity_mbps(fabric, "h0", "h2", ["p0-t1-0:p0-t2-1"]) == whole


def ports_taken(fabric: Fabric, src: str, dst: str, value: int) -> tuple[str, ...]:
    """Return the nodes on the path of a flow with this hash, by the switches' own routes."""
    address = fabric.host(dst).ports[0].address.packed
    nodes = [src, fabric.host(src).ports[0].t0]
    while nodes[-1] != dst:
        switch = fabric.switch(nodes[-1])
        ways = routes_of(fabric, switch, frozenset())[address]
        port = ways[value % len(ways)]
        nodes.append(next(p.peer.node for p in switch.ports if p.number == port))
    return tuple(nodes)


def test_a_hash_spreads_flows_over_all_paths_between_pods() -> None:
    """T1s use another part of the hash than T0s. With the same part, 3/4 of the paths would be idle."""
    fabric, rng = three_tiers(), random.Random(1)
    paths = fabric.paths("h0", "h7")
    taken: Counter[tuple[str, ...]] = Counter()
    for _ in range(200):
        value = rng.getrandbits(32)
        nodes = ports_taken(fabric, "h0", "h7", value)
        assert nodes == _way(paths, value).nodes
        taken[nodes] += 1
    assert set(taken) == {path.nodes for path in paths}
    assert min(taken.values()) > 25


@pytest.mark.parametrize("withdrawn", ["p0-t1-0:p0-t2-1", "p0-t1-2:p0-t2-1"])
def test_a_withdrawn_core_link_is_avoided_on_both_sides(withdrawn: str) -> None:
    fabric = three_tiers()
    address = fabric.host("h7").ports[0].address.packed
    t1 = fabric.switch("p0-t1-0")
    ways = routes_of(fabric, t1, frozenset({withdrawn}))[address]
    peers = {port.peer.node for port in t1.ports if port.number in ways}
    assert peers == {"p0-t2-0"}


def test_a_live_target_refuses_three_tiers() -> None:
    with pytest.raises(InputError, match=r"three has three tiers.*--target sim"):
        require_live(three_tiers())


def test_structured_evs_refuse_three_tiers() -> None:
    with pytest.raises(InputError, match="structured EVs"):
        Load(three_tiers(), {"ev_mode": "structured"}, 1)


def test_paths_name_their_t2() -> None:
    paths = three_tiers().paths("h0", "h7")
    assert [(path.t1, path.t2) for path in paths] == [(0, 0), (0, 1), (1, 2), (1, 3)]
    assert all(len(path.segments) == 6 for path in paths)
