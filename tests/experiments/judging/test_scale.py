"""Values that judges compute from a result, such as the remaining capacity while links are dead."""

import pytest

from mrclab.experiments.figures.goodput_and_latency import expected_collisions
from mrclab.experiments.judging.phases import phases_of
from mrclab.experiments.judging.readings import Series, by_repetition, failures
from mrclab.experiments.judging.scale import (
    PAPER_BYPASS_US,
    bypass_limit_us,
    expected_share,
    fabric_of,
    payload_mbps,
    rtt_us,
)
from mrclab.topologies import Fabric, load_fabric
from tests.support.made_results import STEADY, flow_of, metrics, over_time, result, series, trial


@pytest.fixture(scope="module")
def thin() -> Fabric:
    return load_fabric("thin")


@pytest.mark.parametrize(
    ("broken", "share"),
    [
        ([], 1.0),
        (["h0-eth1"], 0.75),
        (["h0-eth1", "h6-eth2"], 0.5),
        (["p3-t0-0"], 0.75),
        (["p1-t1-2"], 1.0),  # three uplinks carry the full rate of the NIC's port
        ([f"p{p}-t0-0:p{p}-t1-{t}" for p in range(4) for t in (1, 2, 3)], 1.0),
        (["p0"], 0.75),
        ([f"h0-eth{p}" for p in range(4)], 0.0),
    ],
)
def test_what_is_left(thin: Fabric, broken: list[str], share: float) -> None:
    assert expected_share(thin, "h0", "h6", broken) == share


def test_the_slowest_plane_sets_the_rate_of_all() -> None:
    links = {"host": {"rate": "100 Mbit/s"}, "fabric": {"rate": "25 Mbit/s"}}
    topology = {"name": "s", "planes": 2, "t0": 2, "t1": 4, "hosts": 2, "links": links}
    fabric = fabric_of(result({}, {"mrc": {}}, topology), "mrc")
    assert expected_share(fabric, "h0", "h1", ["p0-t0-0:p0-t1-1"]) == 0.75
    assert expected_share(fabric, "h0", "h1", ["p0-t0-0:p0-t1-1", "p0"]) == 0.5


def test_the_fabric_is_the_transports_own() -> None:
    found = result({}, {"mrc": {}, "rocev2": {"one_plane": True}})
    assert fabric_of(found, "mrc").planes == 4
    assert fabric_of(found, "rocev2").planes == 1
    assert payload_mbps(found, "rocev2") == pytest.approx(100 * 4096 / 4234)


def test_a_bypass_scales_with_the_round_trip_but_not_below_the_papers() -> None:
    assert bypass_limit_us(5.4) == PAPER_BYPASS_US
    assert bypass_limit_us(26.16) == 2 * PAPER_BYPASS_US


def test_the_round_trip_is_measured_or_the_topologys() -> None:
    assert rtt_us(result({}, {"mrc": {}}, trials=[trial("mrc", rtt_us=55.0)]), "mrc") == 55
    idle_us = rtt_us(result({}, {"mrc": {}}), "mrc")
    assert 5000 < idle_us < 8000  # four links of 1.35 ms each
    swollen = result({}, {"mrc": {}}, trials=[trial("mrc", rtt_us=90_000.0)])
    assert rtt_us(swollen, "mrc") == idle_us
    assert rtt_us(swollen | {"target": "bmv2"}, "mrc") == idle_us + 900


def test_phases_lie_between_the_changes_of_faults() -> None:
    faults = [("a", 1.0, 2.0), ("b", 1.001, 2.0), ("c", 2.5, None)]
    found = result(flow_of("stream", 3), {"mrc": over_time(lambda t: 100, 3, faults=faults)})
    phases = phases_of(found, "mrc", 2)
    assert [set(phase.broken) for phase in phases] == [set(), {"a", "b"}, set(), {"c"}]
    assert phases[0].window == (0.0, 1e6)
    assert phases[-1].window == (2.5e6, 3e6)


def test_a_series_is_read_exactly() -> None:
    found = Series(series(lambda t: 100 if t < 0.5 else 50, 1, lambda t: 1))
    assert found.rate_mbps((0, 1e6)) == pytest.approx(75)
    assert found.rate_mbps((2500, 7500)) == pytest.approx(100)
    assert found.rates_mbps((0, 1e6), 200_000).tolist() == pytest.approx([100, 100, 75, 50, 50])
    assert found.lost_in((0, 100_000)) == 10
    assert Series({"start_us": 0, "bin_us": 10, "bytes": [], "lost": []}).rate_mbps((0, 10)) == 0


def test_repetitions_that_failed_do_not_count() -> None:
    made = metrics(x=1.0)
    made["samples"][1] |= {"failure": "a queue pair failed"}
    made["samples"][2] |= {"integrity": "byte 7 is wrong"}
    found = result({}, {"mrc": made})
    assert len(by_repetition(found, "mrc", "x")) == len(STEADY) - 2
    assert failures(found, "mrc") == 1


def test_collisions_of_two_flows_over_two_uplinks() -> None:
    links = {kind: {"rate": "25 Mbit/s"} for kind in ("host", "fabric")}
    topology = {"name": "pairs", "planes": 4, "t0": 2, "t1": 2, "hosts": 4, "links": links}
    parts = {"rocev2": {"one_plane": True}}
    found = result(flow_of("permutation", 3, ranks=4), parts, topology)
    slowed, slowest = expected_collisions(found, fabric_of(found, "rocev2"))
    # The two flows of a rack share one of two uplinks with probability 1/2. With probability 3/4, flows share
    # an uplink in at least one of the two racks.
    assert slowed == pytest.approx(0.5, abs=0.03)
    assert slowest == pytest.approx(1 - 0.75 / 2, abs=0.02)
