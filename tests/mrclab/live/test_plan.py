"""The requests that a viewer may make."""

import re

import pytest

from mrclab.faults.kinds import Fault
from mrclab.linux.errors import InputError
from mrclab.live.plan import TrafficPlan, fault_request, traffic_plan, usual_plan
from mrclab.live.session import describe
from mrclab.topologies import load_fabric
from tests.support.paths import ROOT

LAB = load_fabric("lab")


def test_a_stream_goes_from_one_end_of_the_fabric_to_the_other() -> None:
    assert TrafficPlan().pairs(LAB) == (LAB.far_ends(),)


def test_less_is_sent_over_bmv2_in_messages_that_the_page_offers() -> None:
    assert usual_plan("bmv2").rate_bps * 10 <= usual_plan("ebpf").rate_bps
    script = (ROOT / "mrclab/live/static/panels.js").read_text(encoding="utf-8")
    (offered,) = re.findall(r"\[([\d, ]+)\]\.map\(\(n\) => option\(n", script)
    sent = {usual_plan(target).message_bytes for target in ("bmv2", "ebpf")}
    assert sent <= set(map(int, offered.split(",")))


@pytest.mark.parametrize("seed", range(20))
def test_in_a_permutation_every_host_sends_once_and_receives_once(seed: int) -> None:
    pairs = TrafficPlan(pattern="permutation", seed=seed).pairs(LAB)
    names = {host.name for host in LAB.hosts}
    assert {a for a, _ in pairs} == {b for _, b in pairs} == names
    assert all(a != b for a, b in pairs)
    assert len(pairs) == len(names)


def test_an_incast_has_one_target_and_several_sources() -> None:
    pairs = TrafficPlan(pattern="incast").pairs(LAB)
    assert len({b for _, b in pairs}) == 1
    assert len({a for a, _ in pairs}) == len(pairs) == 4


@pytest.mark.parametrize("name", ["tiny", "lab"])
def test_the_ring_of_an_all_reduce_has_all_hosts_and_crosses_racks(name: str) -> None:
    fabric = load_fabric(name)
    pairs = TrafficPlan(pattern="all-reduce").pairs(fabric)
    assert [a for a, _ in pairs] == [pairs[-1][1], *(b for _, b in pairs[:-1])]
    assert {a for a, _ in pairs} == {host.name for host in fabric.hosts}
    assert all(fabric.host(a).rack != fabric.host(b).rack for a, b in pairs)


def test_an_all_reduce_of_too_many_ranks_is_refused() -> None:
    TrafficPlan(pattern="all-reduce").check(LAB)
    with pytest.raises(InputError, match="at most 8 ranks"):
        TrafficPlan(pattern="all-reduce").check(load_fabric("paper-b"))


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        ({"transports": []}, "transports"),
        ({"transports": ["carrier-pigeon"]}, "transports"),
        ({"transports": ["mrc", "mrc"]}, "each transport once"),
        ({"rate_bps": 0}, "rate_bps"),
        ({"rate_bps": "fast"}, "rate_bps"),
        ({"surprise": 1}, "surprise"),
        ([], ""),
        (None, ""),
    ],
)
def test_bad_traffic_is_one_line(request_: object, word: str) -> None:
    with pytest.raises(InputError) as raised:
        traffic_plan(request_)
    assert word in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_fault_takes_the_fields_that_are_given() -> None:
    wanted = {"kind": "loss", "where": "p0-t0-0:p0-t1-0", "ratio": 0.05}
    assert fault_request(wanted) == Fault("loss", "p0-t0-0:p0-t1-0", ratio=0.05)


@pytest.mark.parametrize(
    "wanted", [{"kind": "loss"}, {"kind": "spell", "where": "x"}, {"kind": "loss", "where": 3}, "cut", None]
)
def test_a_bad_fault_is_one_line(wanted: object) -> None:
    with pytest.raises(InputError) as raised:
        fault_request(wanted)
    assert "\n" not in str(raised.value)


def test_faults_are_described_in_words() -> None:
    assert describe(Fault("loss", "x", ratio=0.01, direction="up")) == "loses 1.00%, up only"
    assert describe(Fault("blackhole", "x")) == "silent cut"
