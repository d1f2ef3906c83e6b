"""Max-min shares: small fabrics are compared with an independent program, large fabrics with formulas."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.linux.errors import InputError
from mrclab.scale.fabric import Design
from mrclab.scale.parts import Parts, parse_parts
from mrclab.scale.shares import (
    Fabric,
    Flows,
    _links_used,
    all_to_all,
    ecmp_permutation,
    max_min,
    max_min_single,
    permutation,
)

PARTS = Parts()
SMALL = parse_parts("switch: {capacity: 800 Gbit/s}\nnic: {rate: 200 Gbit/s}\n", "small")
"""With P planes, each chip has 4 P ports. One plane has room for 8 NICs, two planes for 32."""


Loads = list[dict[object, Fraction]]


def by_hand(loads: Loads, capacity: Fraction, most: list[Fraction]) -> list[Fraction]:
    """Fill rates progressively, in exact fractions. ``loads[flow][link]`` is the load for a rate of 1."""
    flows = range(len(loads))
    links = {link for load in loads for link in load}
    rates = [Fraction(0)] * len(loads)
    open_ = {flow for flow in flows if most[flow] > 0}

    def load(link: object, some: set[int]) -> Fraction:
        return sum((loads[flow].get(link, Fraction(0)) for flow in some), Fraction(0))

    def used(link: object, some: set[int]) -> Fraction:
        return sum((rates[flow] * loads[flow].get(link, Fraction(0)) for flow in some), Fraction(0))

    while open_:
        closed = set(flows) - open_
        levels = [most[flow] for flow in open_]
        levels += [(capacity - used(x, closed)) / load(x, open_) for x in links if load(x, open_)]
        level = min(levels)
        for flow in open_:
            rates[flow] = level
        full = {link for link in links if used(link, set(flows)) >= capacity}
        open_ = {flow for flow in open_ if level < most[flow] and not full & set(loads[flow])}
    return rates


def even_loads(fabric: Fabric, flows: Flows) -> tuple[Loads, list[Fraction]]:
    """Return the load of each flow on each link, if flows spread evenly over the planes that have a path."""
    loads: Loads = []
    most = []
    for flow, (a, b) in enumerate(zip(flows.src, flows.dst, strict=True)):
        load: dict[object, Fraction] = {}
        asked = [plane for plane in range(fabric.planes) if flows.weight[plane, flow]]
        t1s = {plane: np.flatnonzero(fabric.up[plane, a] & fabric.up[plane, b]) for plane in asked}
        used = [plane for plane in asked if a == b or len(t1s[plane])]
        for plane in used if a != b else ():
            for t1 in t1s[plane]:
                for link in (("up", plane, int(a), int(t1)), ("down", plane, int(b), int(t1))):
                    load[link] = load.get(link, Fraction(0)) + Fraction(1, len(used) * len(t1s[plane]))
        loads.append(load)
        ports = Fraction(float(flows.most[flow])).limit_denominator(64)
        most.append(ports * Fraction(len(used), max(1, len(asked))))
    return loads, most


@pytest.mark.slow
@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**32),
    planes=st.sampled_from((1, 2)),
    dead=st.integers(0, 5),
    ports=st.integers(0, 3),
)
def test_an_even_spread_is_as_by_hand(seed: int, planes: int, dead: int, ports: int) -> None:
    rng = np.random.default_rng(seed)
    whole = Fabric.of(Design(2, planes, SMALL).built())
    fabric = whole.with_dead_links(dead, rng).with_dead_ports(ports, rng)
    flows = permutation(fabric, rng)
    found = max_min(fabric, flows, tolerance=1e-6)
    loads, most = even_loads(fabric, flows)
    wanted = by_hand(loads, Fraction(1, planes), most)
    assert found.rates == pytest.approx([float(rate) for rate in wanted], abs=1e-4)


@pytest.mark.parametrize("spread", ["even", "adaptive"])
def test_a_flow_leaves_a_plane_without_a_path_and_goes_on_over_the_others(spread: str) -> None:
    whole = Fabric.of(Design(2, 2, SMALL).built())
    up = whole.up.copy()
    up[0, 0, :] = False
    fabric = Fabric(up, whole.ports, whole.nics_per_t0)
    flows = permutation(fabric, np.random.default_rng(3))
    found = max_min(fabric, flows, "even" if spread == "even" else "adaptive", tolerance=1e-6)
    leaves = (flows.src != flows.dst) & ((flows.src == 0) | (flows.dst == 0))
    assert leaves.any()
    assert found.rates[leaves] == pytest.approx(0.5)
    assert found.least > 0


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), flows=st.integers(1, 12), links=st.integers(1, 6))
def test_single_paths_are_as_by_hand(seed: int, flows: int, links: int) -> None:
    rng = np.random.default_rng(seed)
    uses = [sorted({int(x) for x in rng.integers(0, links, 2)}) for _ in range(flows)]
    pairs = [(flow, link) for flow, those in enumerate(uses) for link in those]
    rates, _ = max_min_single(np.array([f for f, _ in pairs]), np.array([x for _, x in pairs]), flows, 1e-9)
    loads: Loads = [{link: Fraction(1) for link in those} for those in uses]
    wanted = by_hand(loads, Fraction(1), [Fraction(1)] * flows)
    assert rates == pytest.approx([float(rate) for rate in wanted])


@pytest.mark.parametrize("spread", ["even", "adaptive"])
def test_a_whole_fabric_blocks_nothing(spread: str) -> None:
    fabric = Fabric.of(Design(2, 4, PARTS).built(4096))
    rng = np.random.default_rng(1)
    for flows in (permutation(fabric, rng), all_to_all(fabric)):
        found = max_min(fabric, flows, "even" if spread == "even" else "adaptive")
        assert found.least == pytest.approx(1)
        assert found.steps == 1


@pytest.mark.parametrize("spread", ["even", "adaptive"])
def test_one_dead_uplink_costs_its_t0_its_share_of_a_plane(spread: str) -> None:
    whole = Fabric.of(Design(2, 8, PARTS).built(2048))  # 8 T0s with 256 uplinks each
    up = whole.up.copy()
    up[3, 5, 77] = False
    fabric = Fabric(up, whole.ports, whole.nics_per_t0)
    to = (np.arange(fabric.nics) + 256) % fabric.nics  # to the next T0: all uplinks are full
    t0 = (np.arange(fabric.nics) // 256).astype(np.int32)
    ones = np.ones(fabric.nics, np.float32)
    flows = Flows(t0, t0[to], ones, np.full((8, fabric.nics), 1 / 8, np.float32), ones)
    found = max_min(fabric, flows, "even" if spread == "even" else "adaptive")
    hit = (flows.src == 5) | (flows.dst == 5)
    assert found.rates[hit] == pytest.approx(255 / 256, rel=1e-3)
    assert found.rates[~hit] == pytest.approx(1)


def test_a_flow_without_a_path_gets_nothing() -> None:
    whole = Fabric.of(Design(2, 1, SMALL).built())
    up = whole.up.copy()
    up[0, 0] = False
    fabric = Fabric(up, whole.ports, whole.nics_per_t0)
    ones = np.ones(2, np.float32)
    flows = Flows(
        np.array([0, 1], np.int32), np.array([1, 2], np.int32), ones, np.ones((1, 2), np.float32), ones
    )
    assert max_min(fabric, flows).rates.tolist() == [0, 1]


def test_dead_ports_cost_their_plane_at_both_ends() -> None:
    whole = Fabric.of(Design(2, 8, PARTS).built(1024))
    ports = whole.ports.copy()
    ports[2, 10] = False
    fabric = Fabric(whole.up, ports, whole.nics_per_t0)
    flows = permutation(fabric, np.random.default_rng(5))
    found = max_min(fabric, flows)
    assert sorted(set(found.rates.round(3).tolist()))[0] == pytest.approx(7 / 8)
    assert int((found.rates < 0.99).sum()) == 2


def test_ecmp_collides_and_spraying_does_not() -> None:
    found = ecmp_permutation(Design(3, 1, PARTS).built(4096), np.random.default_rng(1))
    assert found.total < 0.6
    assert 0 < found.least <= 1 / 3
    with_dead = ecmp_permutation(Design(3, 1, PARTS).built(4096), np.random.default_rng(1), 100)
    assert with_dead.total < found.total


def test_ecmp_uses_no_dead_link() -> None:
    """A flow without a path gets nothing, and a flow with one working path of 32 uses this path."""
    built = Design(2, 1, PARTS).built(64)  # two T0s with 32 uplinks each
    few = ecmp_permutation(built, np.random.default_rng(1), 62)
    inside = ecmp_permutation(built, np.random.default_rng(1), 64)
    between = inside.rates == 0
    assert 0 < between.sum() < len(between)
    assert (inside.rates[~between] == 1).all()
    assert few.rates[between].sum() <= 2 + 1e-6, "at most one path is left, in two directions"
    dead = np.setdiff1d(np.arange(64), [7, 32 + 7])
    flows = np.arange(4)
    of_flow, link, cut_off = _links_used(built, flows, flows + 32, dead, np.random.default_rng(1))
    assert not cut_off.any()
    assert max_min_single(of_flow, link, 4)[0].tolist() == [0.25] * 4


def test_what_cannot_be_computed_is_refused() -> None:
    rng = np.random.default_rng(1)
    fabric = Fabric.of(Design(2, 2, SMALL).built())
    with pytest.raises(InputError):
        fabric.with_dead_links(10_000, rng)
    with pytest.raises(InputError):
        fabric.with_dead_ports(10_000, rng)
    with pytest.raises(InputError):
        all_to_all(fabric.with_dead_ports(1, rng))
    with pytest.raises(InputError):
        Fabric.of(Design(3, 1, PARTS).built())
    with pytest.raises(InputError):
        ecmp_permutation(Design(2, 8, PARTS).built(512), rng)
