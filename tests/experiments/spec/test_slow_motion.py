"""Slow motion: rates are divided, times are multiplied, and everything else stays the same."""

from __future__ import annotations

import json

import pytest

from mrclab.experiments.live.calibration import KINDS, needs_calibration, rehearsal
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.experiments.spec.slow_motion import slowed
from mrclab.run import listed_figures


def test_rates_are_divided_and_times_multiplied() -> None:
    usual = load_scenario("fig14", target="ebpf")
    slow = load_scenario("fig14", target="ebpf", settings=["slower=2"])
    assert (usual.slower, slow.slower) == (1, 2)
    for before, after in zip(usual.fabric().links, slow.fabric().links, strict=True):
        assert (before.a, before.b) == (after.a, after.b)
        assert after.profile.rate_bps * 2 == before.profile.rate_bps
    mine, theirs = usual.workload.params, slow.workload.params
    assert theirs["rate_bps"] * 2 == mine["rate_bps"]
    assert theirs["second_at_ns"] == 2 * mine["second_at_ns"]
    assert theirs["message_bytes"] == mine["message_bytes"]
    assert slow.warmup_ns == 2 * usual.warmup_ns
    assert slow.measure.series_ns == 2 * usual.measure.series_ns
    before, after = usual.transports[0].options, slow.transports[0].options
    assert after["port_bps"] * 2 == before["port_bps"]
    assert after["initial_rtt_ns"] == 2 * before["initial_rtt_ns"]
    assert after["ack_timeout_exponent"] == before["ack_timeout_exponent"] + 1


def test_faults_come_as_much_later() -> None:
    usual = load_scenario("fig09a", target="ebpf")
    for before, after in zip(usual.faults, slowed(usual, 1.5).faults, strict=True):
        assert after.at_ns == 1.5 * before.at_ns  # type: ignore[union-attr]
        assert after.duration_ns == 1.5 * before.duration_ns  # type: ignore[union-attr]


def test_at_its_own_speed_a_scenario_is_as_it_was() -> None:
    usual = load_scenario("fig20", target="ebpf")
    assert slowed(usual, 1) is usual
    assert "slower" not in usual.to_dict()
    assert json.loads(json.dumps(slowed(usual, 3).to_dict()))["slower"] == 3


@pytest.mark.parametrize("name", listed_figures())
def test_every_figure_in_slow_motion_fits_a_fabric(name: str) -> None:
    scenario = load_scenario(name)
    if scenario.target == "sim":
        return
    scenario = load_scenario(name, target="ebpf")
    assert needs_calibration(scenario) == (scenario.workload.kind in KINDS)
    for found in (slowed(scenario, 1.25), rehearsal(slowed(scenario, 2))) if name != "entropy-values" else ():
        found.check_against(found.fabric())


def test_timers_that_nobody_set_run_slower_too() -> None:
    usual = load_scenario("fig18", target="ebpf")
    configs = []
    for scenario in (usual, slowed(usual, 4)):
        transport = next(t for t in scenario.transports if t.kind == "rocev2")
        assert transport.core.config is not None
        configs.append(transport.core.config(scenario.fabric(), "h0", transport.channel_options))
    before, after = configs
    assert after.timeout_exponent == before.timeout_exponent + 2
    assert after.dcqcn.rate_timer_ns == 4 * before.dcqcn.rate_timer_ns
    assert after.dcqcn.line_rate_bps * 4 == before.dcqcn.line_rate_bps
    assert after.window_bytes == before.window_bytes
