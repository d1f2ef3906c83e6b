"""The workload `mesh`, without a fabric: its streams, the random faults of a seed, and the verdict."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mrclab.experiments.live.drivers.mesh import GROWTH_BYTES, Memory, Watched
from mrclab.experiments.spec.fault_schedule import CUTTING, KINDS, PlannedFault, random_faults
from mrclab.experiments.spec.faults import RandomFaults
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.placement import MeshStream, mesh_streams
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.experiments.spec.workloads import Mesh
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, load_fabric

SECOND = 10**9
(FAULTS,) = load_scenario("random-faults").faults
TIGHT = {"kind": "random", "every": "50 ms", "shortest": "20 ms", "longest": "3 s", "at_once": 6}


def hosts_of(fabric: Fabric) -> tuple[str, ...]:
    return load_scenario("random-faults").placement(fabric, 1).hosts


def streams_of(scenario: Scenario, fabric: Fabric) -> list[MeshStream]:
    assert isinstance(scenario.workload, Mesh)
    return mesh_streams(scenario.workload, scenario.placement(fabric, 1).hosts, scenario.seed)


def faults(fabric: Fabric, seed: int, length_ns: int, plan: object = FAULTS) -> list[PlannedFault]:
    assert isinstance(plan, RandomFaults)
    return list(random_faults(fabric, hosts_of(fabric), plan, seed, length_ns))


def test_the_shipped_mesh_pairs_hosts_of_all_racks() -> None:
    scenario, fabric = load_scenario("random-faults"), load_fabric("lab")
    assert hosts_of(fabric) == ("h0", "h2", "h4", "h6")
    streams = streams_of(scenario, fabric)
    assert isinstance(scenario.workload, Mesh)
    assert len(streams) == 4 * 3 * scenario.workload.qps
    assert sum(s.plan.rate_bps for s in streams) == pytest.approx(scenario.workload.rate_bps, rel=1e-5)
    assert len({s.plan.seed for s in streams}) == len(streams)
    for stream in streams:
        (back,) = (s for s in streams if s.src == stream.dst and s.qps[0] == stream.qps[1])
        assert (back.dst, back.qps[1]) == (stream.src, stream.qps[0]), "a queue pair has two ends"


def test_the_streams_that_a_host_receives_share_its_memory() -> None:
    hosts = [f"h{number}" for number in range(8)]
    few, many = (mesh_streams(Mesh(kind="mesh", qps=qps), hosts, 1) for qps in (2, 36))
    assert len(many) == 2016
    assert {s.plan.slots for s in few} == {64}
    assert {s.plan.slots for s in many} == {4}
    received = sum(s.plan.slots * s.plan.message_bytes for s in many if s.dst == "h3")
    assert received <= 64 << 20
    with pytest.raises(InputError, match="messages have at most 66576 bytes"):
        mesh_streams(Mesh(kind="mesh", qps=36, message_bytes=66_577), hosts, 1)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**62), tight=st.booleans())
def test_faults_are_bounded_and_mended_and_leave_a_path_or_are_short(seed: int, tight: bool) -> None:
    fabric = load_fabric("tiny")
    plan = RandomFaults.model_validate(TIGHT) if tight else FAULTS
    assert isinstance(plan, RandomFaults)
    length = 60 * SECOND
    planned = faults(fabric, seed, length, plan)
    assert planned == faults(fabric, seed, length, plan)
    assert len(planned) > 50
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(planned))
    hosts = hosts_of(fabric)
    paths = [[set(p.links) for p in fabric.paths(a, b)] for a, b in combinations(hosts, 2)]
    wires = {p.ifname: f"{h.name}:{p.t0}" for h in fabric.hosts for p in h.ports}
    for fault in planned:
        assert fault.until_ns is not None
        assert fault.at_ns < fault.until_ns <= length
        others = [f for f in planned if f.at_ns <= fault.at_ns < (f.until_ns or 0)]
        assert len(others) <= plan.at_once
        struck = [wires.get(f.place, f.place) for f in others]
        assert len(struck) == len(set(struck)), "one fault to a cable"
        if fault.kind in CUTTING:
            cut = {wires.get(f.place, f.place) for f in others if f.kind in CUTTING}
            if any(all(links & cut for links in pair) for pair in paths):
                assert fault.until_ns - fault.at_ns <= plan.cut_off_ns


def test_all_kinds_ways_and_places_come_about() -> None:
    fabric = load_fabric("tiny")
    planned = faults(fabric, 1, 600 * SECOND)
    assert {f.kind for f in planned} == {kind for kind, _, _ in KINDS}
    assert {f.direction for f in planned} == {"both", "up", "down"}
    assert {f.place for f in planned} >= {link.name for link in fabric.links}
    assert {f.place for f in planned} >= {p.ifname for h in fabric.hosts for p in h.ports}
    assert faults(fabric, 2, 600 * SECOND) != planned


def test_what_the_fabric_cannot_do_is_refused() -> None:
    tiny = load_fabric("tiny")
    with pytest.raises(InputError, match="has 4 hosts, not 9"):
        streams_of(load_scenario("random-faults", settings=["workload.hosts=9"]), tiny)
    with pytest.raises(InputError, match="too few for 24 streams"):
        streams_of(load_scenario("random-faults", settings=["workload.rate=100 kbit/s"]), tiny)


def watched(**changes: Any) -> Watched:
    found = Watched(streams_of(load_scenario("random-faults"), load_fabric("tiny"))[0])
    found.sender = {"drained": True, "posted": 5, "completed": 5, "posted_bytes": 50} | {
        key: value
        for key, value in changes.items()
        if key != "placed" and key not in ("received", "delivered")
    }
    found.receiver = {
        "received": changes.get("received", 5),
        "bytes_delivered": changes.get("delivered", 50),
        "counters": {"bytes_placed": changes.get("placed", 50)},
    }
    return found


@pytest.mark.parametrize(
    "changes",
    [
        {"drained": False},
        {"completed": 4},
        {"received": 4},
        {"delivered": 49},
        {"placed": 51},
        {"placed": 49},
    ],
)
def test_whatever_does_not_add_up_is_a_failure(changes: dict[str, Any]) -> None:
    assert watched().check_end() is None
    assert watched(**changes).check_end() is not None


def test_memory_that_grows_is_told_from_memory_that_got_warm() -> None:
    warm = Memory([(float(t), 10**8 + min(t, 200) * 10**5) for t in range(0, 1000, 5)])
    assert warm.growth_bytes == 0
    leak = Memory([(float(t), 10**8 + t * 30_000 + t % 3 * 4096) for t in range(0, 1000, 5)])
    assert leak.growth_bytes == pytest.approx(660 * 30_000, rel=0.02)
    assert leak.growth_bytes is not None
    assert leak.growth_bytes > GROWTH_BYTES
    assert Memory([(0.0, 5), (5.0, 5)]).growth_bytes is None
