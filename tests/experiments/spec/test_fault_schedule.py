import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.spec.fault_schedule import FaultSpec, PlannedFault, matching, places_of, schedule
from experiments.spec.one_plane import place_in_one_plane, specs_in_one_plane
from topologies import Fabric, load_fabric, one_plane


@pytest.fixture(scope="module")
def lab() -> Fabric:
    return load_fabric("lab")


def spec(kind: str = "blackhole", where: str = "random", **changes: int) -> FaultSpec:
    return FaultSpec(kind, (where,), **changes)  # type: ignore[arg-type]


def test_names_and_patterns_find_places_of_the_right_kind(lab: Fabric) -> None:
    assert matching(spec(where="p0-t0-0:p0-t1-2"), lab) == ["p0-t0-0:p0-t1-2"]
    assert len(matching(spec(where="p0-t0-*:p0-t1-*"), lab)) == 16
    assert len(matching(spec(where="h0:*"), lab)) == 4
    assert matching(spec("switch-death", "p?-t1-3"), lab) == [f"p{p}-t1-3" for p in range(4)]
    assert matching(spec("port-down", "h1-eth*"), lab) == [f"h1-eth{p}" for p in range(4)]
    assert matching(spec("plane-death", "p2"), lab) == ["p2"]
    assert matching(spec("plane-death", "p0-t1-0"), lab) == []


def test_random_is_a_link_that_the_traffic_uses(lab: Fabric) -> None:
    used = ["p0-t0-0:p0-t1-2", "h0:p0-t0-0"]
    assert matching(spec(), lab, used) == ["p0-t0-0:p0-t1-2"]


def test_what_repeats_stops_with_the_count_or_with_the_workload(lab: Fabric) -> None:
    times = [f.at_ns for f in schedule([spec(at_ns=5, every_ns=10)], lab, 1, 30)]
    assert times == [5, 15, 25]
    counted = schedule([spec(at_ns=5, every_ns=10, duration_ns=4, count=2)], lab, 1, 10**9)
    assert [(f.at_ns, f.until_ns) for f in counted] == [(5, 9), (15, 19)]


@given(st.integers(0, 1000), st.integers(1, 5))
def test_picks_are_seeded_and_come_round_before_they_repeat(seed: int, pick: int) -> None:
    lab = load_fabric("tiny")
    entry = spec(where="p*-t0-*:p*-t1-*", pick=pick, every_ns=10, duration_ns=5, count=6)
    first = schedule([entry], lab, seed, 0)
    assert first == schedule([entry], lab, seed, 0)
    by_time: dict[int, list[str]] = {}
    for fault in first:
        by_time.setdefault(fault.at_ns, []).append(fault.place)
    assert all(len(set(places)) == pick for places in by_time.values())
    assert len({fault.place for fault in first[:8]}) == min(8, len(first)) or pick in (3, 5)


def test_a_planned_fault_reads_as_a_sentence() -> None:
    fault = PlannedFault("loss", "h0:p0-t0-0", 10_000_000, None, "up", {"ratio": 0.1})
    assert str(fault) == "loss on h0:p0-t0-0 up ratio 0.1 from 10 ms to the end"


def test_one_plane_has_the_bandwidth_of_all(lab: Fabric) -> None:
    one = one_plane(lab)
    assert (one.planes, len(one.hosts), len(one.switches)) == (1, 8, 8)
    assert {link.profile.rate_bps for link in one.links} == {4 * 10**9}
    assert one_plane(one) is one


@pytest.mark.parametrize(
    ("place", "there"),
    [
        ("p3-t0-1:p3-t1-2", "p0-t0-1:p0-t1-2"),
        ("p*-t0-*:p*-t1-?", "p0-t0-*:p0-t1-?"),
        ("h3:p2-t0-1", "h3:p0-t0-1"),
        ("h3-eth2", "h3-eth0"),
        ("h*-eth[12]", "h*-eth0"),
        ("p3", "p0"),
        ("p*", "p0"),
        ("p1-t1-0", "p0-t1-0"),
        ("random", "random"),
    ],
)
def test_places_in_one_plane(place: str, there: str, lab: Fabric) -> None:
    assert place_in_one_plane(place) == there


def test_places_that_fall_together_strike_once(lab: Fabric) -> None:
    entry = FaultSpec("loss", ("h0:p0-t0-0", "h0:p1-t0-0"))
    (found,) = specs_in_one_plane([entry])
    assert found.where == ("h0:p0-t0-0",)


def test_every_kind_has_places(lab: Fabric) -> None:
    from experiments.spec.fault_schedule import KINDS

    assert all(places_of(lab, kind) for kind in KINDS)
