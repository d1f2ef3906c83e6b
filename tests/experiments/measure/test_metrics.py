import numpy as np
import pytest

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.metrics import (
    collective_metrics,
    delivered_series,
    flow_metrics,
    late_messages,
    longest_gap_ns,
    request_metrics,
    size_text,
    training_metrics,
)
from mrclab.experiments.measure.recovery import FEW_MESSAGES
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.spec.placement import in_turns, place
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.linux.errors import InputError
from mrclab.topologies import Fabric, load_fabric

MS = 1_000_000


def stream(count: int = 2000, latency_ns: int = 200_000) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    """Return when messages are posted, one each ms, and when they arrive, with a little jitter."""
    posted = np.arange(count, dtype=np.int64) * MS
    return posted, posted + latency_ns + np.arange(count) % 7 * 1000


def late(posted: np.ndarray, arrived: np.ndarray, stop_ms: int = 2000) -> tuple[list[int], int]:  # type: ignore[type-arg]
    known = late_messages(posted, arrived, 1000 * MS, stop_ms * MS)
    assert known is not None
    found, missing = known
    return found.tolist(), missing


def test_where_no_message_is_late_there_is_no_number_in_its_place() -> None:
    assert late(*stream()) == ([], 0)


def test_late_messages_begin_near_the_fault_and_follow_one_another() -> None:
    posted, arrived = stream()
    arrived[1003] += 5 * MS  # it was posted 3 ms after the fault, and took 5.2 ms
    arrived[1010] += 2 * MS
    arrived[1200] += 50 * MS  # this is long after the fault, so it does not count
    assert late(posted, arrived) == ([1003, 1010], 0)


def test_latenesses_before_the_fault_say_what_is_usual() -> None:
    posted, arrived = stream()
    arrived[700] += 5 * MS
    arrived[1003] += 4 * MS
    assert late(posted, arrived) == ([], 0)
    assert (
        late_messages(posted[981:], arrived[981:], 1000 * MS, 2000 * MS) is None
    )  # there are too few before


def test_an_outage_makes_all_messages_late_and_its_gap_shows() -> None:
    posted, arrived = stream()
    held = slice(1000, 1300)
    arrived[held] = 1300 * MS + np.arange(300) * 1000
    found, _ = late(posted, arrived)
    assert (found[0], found[-1]) == (1000, 1299)
    assert longest_gap_ns(arrived, 1000 * MS, 2000 * MS) == pytest.approx(300 * MS, rel=0.01)


def test_a_late_message_that_never_came_is_counted() -> None:
    posted, arrived = stream()
    arrived[1005] = -1
    assert late(posted, arrived) == ([1005], 1)


@pytest.mark.parametrize(("begin", "felt"), [(0, True), (990, None)])
def test_nobody_knows_whether_a_fault_was_felt_that_few_messages_came_before(
    lab: Fabric, begin: int, felt: bool | None
) -> None:
    """The fault stops the flow for 300 ms, but there may be too few messages to compare with."""
    posted, arrived = stream()
    arrived[1000:1300] = 1300 * MS + np.arange(300) * 1000
    count = len(posted) - begin
    ranks = [
        {"flow0_posted_ns": posted[begin:]},
        {"flow0_numbers": np.arange(count), "flow0_arrived_ns": arrived[begin:]},
    ]
    found = measure(
        Evidence(
            TRANSPORTS["mrc-adaptive"],
            0,
            1,
            lab,
            ("h0", "h6"),
            ((0, 1),),
            {"kind": "permutation"},
            0,
            2000 * MS,
            flow_bytes=(1000,),
            faults=(FaultRecord("plane-death", "p0", 1000 * MS, 1000 * MS, 1300 * MS, 1300 * MS),),
            samples=tuple({**rank, "series_t_ns": posted[:2], "series_bytes": posted[:2]} for rank in ranks),
        )
    )
    (trial,) = found.trials
    assert trial["felt"] is felt
    assert trial["recovered_us"] == (300_299 if felt else None)
    assert trial.get("recovered_reason") == (None if felt else FEW_MESSAGES)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # Four ranks have 1 MB each. The first rank starts at 0, and the last rank ends at 1 ms.
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


def test_a_trimmed_packet_is_not_lost() -> None:
    nothing = np.zeros(0, np.int64)
    rank = {
        "series_t_ns": nothing,
        "series_bytes": nothing,
        "event_lost_ns": np.array([0, 1, 2, MS]),
        "event_lost_trimmed": np.array([0, 1, 1, 0]),
    }
    assert delivered_series([rank], 0, 0, 2 * MS, MS)["lost"] == [1, 1]


def test_sizes_have_names() -> None:
    assert [size_text(n) for n in (1 << 20, 65536, 1000, 3 << 30)] == ["1MiB", "64KiB", "1000B", "3GiB"]


def test_flows_have_rates_and_latencies() -> None:
    posted, arrived = stream()
    ranks = [
        {"flow0_posted_ns": posted},
        {"flow0_numbers": np.arange(2000), "flow0_arrived_ns": arrived},
    ]
    found = flow_metrics([(0, 1)], [1000], ranks, 500 * MS, 1500 * MS, [1000 * MS])
    assert found["goodput_mbps"] == [pytest.approx(8.0)]
    assert len(found["latency_us"]) == 1000
    assert found["gap_us"] == [pytest.approx(1000, rel=0.01)]


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
    starts = [flow["after_ns"] for flow in found.params["flows"]]
    assert starts == [None] * 6
    joining = place("incast", {**params, "join_every_ns": 100}, lab, 1).params["flows"]
    assert [flow["after_ns"] for flow in joining] == [None, 100, 200, 300, 400, 500]
