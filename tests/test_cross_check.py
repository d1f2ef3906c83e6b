"""The comparison of the simulator with the emulation: bounds, table, scenarios, and values of a run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.cross_check import recovery_bound, recovery_rows, steady_rows
from benchmarks.kit.agreement import Bound, Row, table
from benchmarks.kit.crossing import (
    FAST_BPS,
    SLOW_BPS,
    Case,
    Steady,
    Target,
    answers_us,
    cut,
    dead_links,
    incast,
    mean_over_time,
    shared_link,
)
from mrclab.experiments.measure.pcap import PACKET, Opcode, Packets
from mrclab.experiments.spec.scenario import parse_scenario

CASES = [
    *(cut(bps, 20) for bps in (SLOW_BPS, FAST_BPS)),
    *(dead_links(dead) for dead in range(3)),
    shared_link(),
    incast(),
]


@pytest.mark.parametrize("target", ["ebpf", "sim"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}-{case.rate_bps // 10**6}")
def test_every_case_is_a_scenario_for_both_targets(case: Case, target: Target) -> None:
    scenario = parse_scenario(json.dumps(case.on(target, 90_000, "buckets", 2)), "case.yaml")
    scenario.check_against(scenario.fabric())
    assert (scenario.target, scenario.repetitions, scenario.measure.capture) == (target, 2, True)
    found = (scenario.virtual.processing_ns, scenario.virtual.links)
    assert found == ((90_000, "buckets") if target == "sim" else (200, "wires"))
    assert min(link.profile.rate_bps for link in scenario.fabric().links) == case.rate_bps


def test_bounds_are_shares_or_distances() -> None:
    assert Bound(share=0.02).holds(50, 51) is True
    assert Bound(share=0.02).holds(50, 48.9) is False
    assert Bound(distance=3).holds(50, 47) is True
    assert Bound(distance=3).holds(50, 53.1) is False
    assert Bound().holds(1, 99) is None


def test_what_was_not_found_does_not_hold() -> None:
    assert Row("x", "us", None, 1.0, Bound(share=0.5)).holds is False
    assert Row("x", "us", None, 1.0).holds is None


def test_the_table_has_both_values_their_ratio_and_the_verdict() -> None:
    rows = [
        Row("goodput", "Mbit/s", 50.0, 49.5, Bound(share=0.02)),
        Row("recovered", "us", 900.0, 1300.0, Bound(distance=123.4)),
        Row("trims", "1/s", 0.0, 3.0),
    ]
    head, goodput, recovered, trims = table(rows, "emulation", "simulation").splitlines()
    assert head.split() == ["emulation", "simulation", "ratio", "bound"]
    assert goodput.split() == ["goodput,", "Mbit/s", "50", "49.5", "0.990", "within", "2%", "holds"]
    assert recovered.split()[-6:] == ["within", "123", "us", "DOES", "NOT", "HOLD"]
    assert trims.split() == ["trims,", "1/s", "0", "3", "-"]


def test_a_recovery_may_be_an_rtt_the_host_time_and_chance_away() -> None:
    # Four standard errors of the difference of two medians: 4 * sqrt(2) * 100 us / sqrt(32) = 100 us.
    assert recovery_bound(300, 50, 100, 32).distance == pytest.approx(450)
    near, far = ([1000.0] * 32, [1400.0] * 32), ([1000.0] * 32, [1500.0] * 32)
    assert [recovery_rows("cut", t, (300, 290), 50, 100)[0].holds for t in (near, far)] == [True, False]
    unfelt: tuple[list[float], list[float]] = ([], [1.0])
    assert recovery_rows("cut", unfelt, (300, 290), 50, 100)[0].holds is False


def test_steady_flows_are_compared_by_their_means() -> None:
    live = [Steady(50.0, 0.5, 1000.0, 14000.0), Steady(52.0, 0.3, 1100.0, None)]
    virtual = [Steady(51.5, 0.35, 1060.0, 16000.0)]
    rows = steady_rows("flows", (live, virtual), marks=True, trims=True)
    assert [(row.first, row.second) for row in rows] == [
        (51.0, 51.5),
        (pytest.approx(40.0), pytest.approx(35.0)),
        (14000.0, 16000.0),
        (1050.0, 1060.0),
    ]
    assert [row.holds for row in rows] == [True] * 4
    (goodput, trims) = steady_rows("flows", (live, virtual), marks=False, trims=False)
    assert (goodput.holds, trims.holds) == (True, None)


def test_a_window_is_its_mean_over_time() -> None:
    steps = [(0, 100), (40, 200), (90, 400), (200, 1)]
    assert mean_over_time(steps, 20, 120) == pytest.approx((20 * 100 + 50 * 200 + 30 * 400) / 100)
    assert mean_over_time(steps, 100, 150) is None
    assert mean_over_time([], 0, 9) is None


def test_the_host_time_ends_with_the_sack_that_names_the_packet() -> None:
    rows = np.zeros(4, PACKET)
    data, sack = int(Opcode.WRITE_ONLY), int(Opcode.SACK)
    for row, (outgoing, opcode, psn, echo) in zip(
        rows, [(False, data, 7, 0), (False, data, 8, 0), (True, sack, 0, 8), (True, sack, 0, 9)], strict=True
    ):
        row["outgoing"], row["opcode"], row["psn"], row["echo_psn"] = outgoing, opcode, psn, echo
    packets = Packets(rows, 4, 0, False)
    assert answers_us(packets, np.array([1000, 5000, 9500, 9900])) == [4.5]
