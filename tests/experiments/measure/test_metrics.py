import numpy as np
import pytest

from experiments.measure.metrics import (
    collective_metrics,
    delivered_series,
    flow_metrics,
    recovery,
    request_metrics,
    size_text,
    training_metrics,
)
from experiments.spec.placement import Placement, in_turns, place
from linux.errors import InputError
from topologies import Fabric, load_fabric

MS = 1_000_000


def stream(count: int = 2000, latency_ns: int = 200_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """A message each ms from 0 on, all as fast as one another but for a little jitter."""
    posted = np.arange(count, dtype=np.int64) * MS
    return posted, posted + latency_ns + np.arange(count) % 7 * 1000


def test_where_no_message_is_late_the_usual_latency_bounds_the_recovery() -> None:
    posted, arrived = stream()
    gap, whole, since = recovery(posted, arrived, 1000 * MS, 2000 * MS)
    assert whole == since == pytest.approx(206, abs=1)
    assert gap == pytest.approx(1000, rel=0.05)


def test_whole_is_when_the_last_late_message_is_here() -> None:
    posted, arrived = stream()
    arrived[1003] += 5 * MS  # posted 3 ms after the fault, 5.2 ms on its way
    arrived[1010] += 2 * MS
    _, whole, since = recovery(posted, arrived, 1000 * MS, 2000 * MS)
    assert whole == pytest.approx(12_200, abs=10)
    assert since == pytest.approx(9_200, abs=10)


def test_what_is_late_long_after_is_another_story() -> None:
    posted, arrived = stream()
    arrived[1003] += 5 * MS
    arrived[1200] += 50 * MS
    assert recovery(posted, arrived, 1000 * MS, 2000 * MS)[1] == pytest.approx(8_200, abs=10)


def test_an_outage_lasts_until_it_is_over_and_its_gap_shows() -> None:
    posted, arrived = stream()
    held = slice(1000, 1300)
    arrived[held] = 1300 * MS + np.arange(300) * 1000
    gap, whole, _ = recovery(posted, arrived, 1000 * MS, 2000 * MS)
    assert whole == pytest.approx(300_300, rel=0.01)
    assert gap == pytest.approx(300_000, rel=0.01)


def test_a_message_that_never_came_counts_to_the_end() -> None:
    posted, arrived = stream()
    arrived[1005] = -1
    assert recovery(posted, arrived, 1000 * MS, 2000 * MS)[1] == pytest.approx(1_000_000)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # Four ranks, 1 MB, from 0 (the first starts) to 1 ms (the last is done).
    ranks = [
        {
            "bytes": np.array([1_000_000]),
            "start_ns": np.array([r]),
            "end_ns": np.array([MS - 3 + r]),
        }
        for r in range(4)
    ]
    found = collective_metrics("all-reduce", ranks)
    assert found["time_us@1000000B"] == [1000]
    assert found["algbw_gbps@1000000B"] == [8]
    assert found["busbw_gbps@1000000B"] == [12]
    assert collective_metrics("all-to-all", ranks)["busbw_gbps@1000000B"] == [6]


def test_a_stalled_step_shows() -> None:
    starts = np.arange(5) * 10 * MS
    ends = starts + 6 * MS
    ends[2] += 3 * MS
    ranks = [{"start_ns": starts, "computed_ns": starts + 5 * MS, "end_ns": ends} for _ in range(2)]
    found = training_metrics(ranks, 5 * MS)
    assert found["step_us"] == [6000, 6000, 9000, 6000, 6000]
    assert found["stalled_us"] == [0, 0, 3000, 0, 0]


def test_requests_of_the_warm_up_do_not_count() -> None:
    ranks = [{"sent_ns": np.array([1, 5, 9]), "answered_ns": np.array([2000, 4005])}]
    assert request_metrics(ranks, 4)["latency_us"] == [4.0]


def test_series_end_where_the_bytes_came() -> None:
    ranks = [{"series_t_ns": np.array([0, MS, 3 * MS]), "series_bytes": np.array([0, 100, 500])}]
    found = delivered_series(ranks, MS, 0, 3 * MS, MS)
    assert found["bytes"] == [100, 200, 200]
    assert found["start_us"] == -1000


def test_sizes_have_names() -> None:
    assert [size_text(n) for n in (1 << 20, 65536, 1000, 3 << 30)] == ["1MiB", "64KiB", "1000B", "3GiB"]


def test_flows_have_rates_and_latencies() -> None:
    params = {"flows": [{"message_bytes": 1000}]}
    placement = Placement(("h0", "h1"), "flows", params, ((0, 1),), 1000 * MS)
    posted, arrived = stream()
    ranks = [
        {"flow0_posted_ns": posted},
        {"flow0_numbers": np.arange(2000), "flow0_arrived_ns": arrived},
    ]
    found = flow_metrics(placement, ranks, 500 * MS, [1000 * MS])
    assert found["goodput_mbps"] == [pytest.approx(8.0)]
    assert len(found["latency_us"]) == 1000
    assert found["whole_us"] == [pytest.approx(206, abs=1)]


@pytest.fixture(scope="module")
def lab() -> Fabric:
    return load_fabric("lab")


def test_neighbours_are_in_different_racks(lab: Fabric) -> None:
    assert in_turns(lab) == ("h0", "h2", "h4", "h6", "h1", "h3", "h5", "h7")


def test_a_permutation_has_everybody_send_and_receive_once(lab: Fabric) -> None:
    params = {"ranks": 0, "message_bytes": 64, "depth": 1, "rate_bps": 0, "duration_ns": 1}
    found = place("permutation", params, lab, 3)
    assert sorted(a for a, _ in found.pairs) == sorted(b for _, b in found.pairs) == list(range(8))
    racks = {name: lab.host(name).rack for name in found.hosts}
    assert all(racks[found.hosts[a]] != racks[found.hosts[b]] for a, b in found.pairs)


def test_an_incast_comes_through_the_fabric_and_its_victim_shares_no_host(lab: Fabric) -> None:
    params = {
        "dst": "auto",
        "senders": 5,
        "victim": True,
        "message_bytes": 64,
        "depth": 1,
        "rate_bps": 0,
        "duration_ns": 1,
    }
    found = place("incast", params, lab, 1)
    assert found.hosts[0] == "h6"
    assert found.hosts[-1] == "h7"
    assert found.pairs == ((1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 7))
    assert len(set(found.hosts)) == 8
    with pytest.raises(InputError, match=r"workload\.senders: 9 of 5 hosts"):
        place("incast", {**params, "senders": 9}, lab, 1)
