from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mrclab.experiments.spec.fault_schedule import (
    PlannedFault,
    check_places,
    denylists,
    faults_met,
    matching,
    place_in_one_plane,
    places_of,
    schedule,
    specs_in_one_plane,
    trials_of,
)
from mrclab.experiments.spec.faults import Drain, SequentialFaults, TimedFault
from mrclab.faults.kinds import KINDS
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, load_fabric, one_plane


@pytest.fixture(scope="module")
def lab() -> Fabric:
    return load_fabric("lab")


def spec(kind: str = "blackhole", where: str = "random", **changes: int | str) -> TimedFault:
    keys = {key: f"{value} ns" if key in TIMES else value for key, value in changes.items()}
    return TimedFault.model_validate({"kind": kind, "where": where, **keys})


TIMES = ("at", "every", "duration", "period", "down")


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
    times = [f.at_ns for f in schedule([spec(at=5, every=10)], lab, 1, 30)]
    assert times == [5, 15, 25]
    counted = schedule([spec(at=5, every=10, duration=4, count=2)], lab, 1, 10**9)
    assert [(f.at_ns, f.until_ns) for f in counted] == [(5, 9), (15, 19)]


def test_a_short_run_does_not_pay_for_the_faults_of_a_long_one(lab: Fabric) -> None:
    hour_ns = 3600 * 10**9
    flap = spec("flap", at=7, duration=hour_ns, period=10_000_000, down=5_000_000)
    found = schedule([flap, spec(at=5, every=10), spec(at=7, every=20, count=10**5)], lab, 1, hour_ns)
    first = [(fault.entry, fault.at_ns) for fault in islice(found, 6)]
    assert first == [(1, 5), (0, 7), (2, 7), (1, 15), (1, 25), (2, 27)]


@given(st.integers(0, 1000), st.integers(1, 5))
def test_picks_are_seeded_and_come_round_before_they_repeat(seed: int, pick: int) -> None:
    lab = load_fabric("tiny")
    entry = spec(where="p*-t0-*:p*-t1-*", pick=pick, every=10, duration=5, count=6)
    first = list(schedule([entry], lab, seed, 0))
    assert first == list(schedule([entry], lab, seed, 0))
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
    entry = TimedFault.model_validate({"kind": "loss", "where": ["h0:p0-t0-0", "h0:p1-t0-0"]})
    (found,) = specs_in_one_plane([entry])
    assert isinstance(found, TimedFault)
    assert found.where == ("h0:p0-t0-0",)


def test_every_kind_has_places(lab: Fabric) -> None:
    assert all(places_of(lab, kind) for kind in KINDS)


def test_a_random_switch_is_a_t1_on_the_way(lab: Fabric) -> None:
    used = ["p0-t0-0:p0-t1-2", "h0:p0-t0-0"]
    assert matching(spec("switch-death"), lab, used) == ["p0-t1-2"]


def test_a_flap_is_a_fault_each_time(lab: Fabric) -> None:
    where = "p0-t0-0:p0-t1-0"
    ms = 1_000_000
    entry = spec("flap", where, at=5 * ms, duration=50 * ms, period=20 * ms, down=15 * ms, of="carrier")
    found = list(schedule([entry], lab, 1, 10**9))
    assert {(fault.kind, fault.place) for fault in found} == {("carrier", where)}
    times = [(fault.at_ns // ms, (fault.until_ns or 0) // ms) for fault in found]
    assert times == [(5, 20), (25, 40), (45, 55)]


def test_a_failing_optic_is_a_fault_for_each_phase(lab: Fabric) -> None:
    where, ms = "p0-t0-0:p0-t1-0", 1_000_000
    entry = spec("failing-optic", where, duration=30 * ms, period=20 * ms, down=5 * ms, ratio=0.1)
    found = schedule([entry], lab, 1, 10**9)
    assert [(f.kind, f.at_ns // ms, (f.until_ns or 0) // ms, dict(f.params)) for f in found] == [
        ("corruption", 0, 15, {"ratio": 0.1}),
        ("blackhole", 15, 20, {}),
        ("corruption", 20, 30, {"ratio": 0.1}),
    ]


def test_trials_come_round_before_they_repeat_and_follow_from_the_seed(lab: Fabric) -> None:
    entry = SequentialFaults.model_validate({"kind": "blackhole", "where": "p0-t0-0:*", "trials": 10})
    trials = trials_of(entry, 0, lab, 3, ())
    assert trials == trials_of(entry, 0, lab, 3, ())
    assert len({fault.place for fault in trials[:4]}) == 4
    assert (len(trials), trials[0].until_ns) == (10, entry.hold_ns)


def test_a_control_meets_no_faults(lab: Fabric) -> None:
    entry = TimedFault.model_validate({"kind": "blackhole", "where": "p1-t0-0:p1-t1-0"})
    mrc = TRANSPORTS["mrc"]
    assert faults_met([entry], mrc) == (entry,)
    assert faults_met([entry], replace(mrc, faults=False)) == ()
    (moved,) = faults_met([entry], TRANSPORTS["rocev2"])
    assert isinstance(moved, TimedFault)
    assert moved.where == ("p0-t0-0:p0-t1-0",)


def test_drains_say_which_links_to_avoid_from_when_on(lab: Fabric) -> None:
    ms = 1_000_000
    switch = Drain.model_validate({"kind": "drain", "where": "p1-t1-2", "at": "10 ms", "duration": "20 ms"})
    link = Drain.model_validate({"kind": "drain", "where": "p0-t0-0:p0-t1-0", "at": "20 ms"})
    at_switch = tuple(f"p1-t0-{rack}:p1-t1-2" for rack in range(4))
    assert denylists([switch, link], lab) == (
        (10 * ms, at_switch),
        (20 * ms, (*at_switch, "p0-t0-0:p0-t1-0")),
        (30 * ms, ("p0-t0-0:p0-t1-0",)),
    )
    assert denylists([], lab) == ()
    assert list(schedule([switch, link], lab, 1, 10**9)) == []
    check_places([switch, link], lab, "x.yaml")
    wrong = Drain.model_validate({"kind": "drain", "where": ["p1-t1-2", "p9-t1-0"]})
    with pytest.raises(InputError, match=r"faults\[0\].where: 'p9-t1-0' matches nothing in lab"):
        check_places([wrong], lab, "x.yaml")


def test_a_fault_may_be_for_transports_over_planes_or_in_one() -> None:
    whole, one, both = (
        TimedFault.model_validate({"kind": "plane-death", "where": where, "over": over})
        for where, over in (("p2", "planes"), ("p1", "one-plane"), ("p0", "any"))
    )
    mrc, rocev2 = TRANSPORTS["mrc"], TRANSPORTS["rocev2"]
    assert faults_met([whole, one, both], mrc) == (whole, both)
    met = faults_met([whole, one, both], rocev2)
    assert [fault.over for fault in met] == ["one-plane", "any"]
    assert all(fault.where == ("p0",) for fault in met)
