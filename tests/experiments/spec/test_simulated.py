"""Which scenarios the target `sim` accepts, and how a transport is left out of a scenario."""

from __future__ import annotations

import pytest

from mrclab.experiments.spec.scenario import load_scenario, parse_overrides, parse_scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.hosts.options import fast_links
from mrclab.linux.errors import InputError

TWO = """\
name: mine
topology: tiny
transports: {mrc: null, tcp: null}
workload: {kind: stream, duration: 1 ms}
targets: {sim: {transports: {tcp: false}}}
"""


LIVE_ONLY = {
    "random-faults": "a mesh needs a live target",
    "program-kill": "a program runs on a live target only",
}


@pytest.mark.parametrize("name", SCENARIOS.names())
def test_every_shipped_scenario_is_simulated_at_a_data_centres_speed_or_refused(name: str) -> None:
    scenario = load_scenario(name, target="sim")
    if refusal := LIVE_ONLY.get(name):
        with pytest.raises(InputError, match=refusal):
            scenario.check_against(scenario.fabric())
        return
    fabric = scenario.fabric()
    scenario.check_against(fabric)
    assert fast_links(fabric)


def test_a_part_for_a_target_leaves_out_what_the_target_lacks() -> None:
    assert [t.name for t in parse_scenario(TWO, "mine.yaml").transports] == ["mrc", "tcp"]
    target = parse_overrides((), target="sim")
    assert [t.name for t in parse_scenario(TWO, "mine.yaml", target).transports] == ["mrc"]


def test_what_only_a_kernel_has_is_refused_before_anything_runs_with_the_mend() -> None:
    overrides = parse_overrides(("transports.tcp=null",), target="sim")
    scenario = parse_scenario(TWO, "mine.yaml", overrides)
    with pytest.raises(InputError, match=r"leave it out .* by --set transports\.tcp=false"):
        scenario.check_against(scenario.fabric())


def test_no_transport_left_is_a_mistake() -> None:
    with pytest.raises(InputError, match="transports"):
        parse_scenario(TWO, "mine.yaml", parse_overrides(("transports.mrc=false", "transports.tcp=false")))


def test_hosts_and_links_of_virtual_time_are_refused_on_live_targets() -> None:
    given = "virtual.processing=90 us"
    scenario = parse_scenario(TWO, "mine.yaml", parse_overrides((given,), target="sim"))
    scenario.check_against(scenario.fabric())
    assert scenario.virtual.processing_ns == 90_000
    assert scenario.to_dict()["virtual"] == {"processing_ns": 90_000, "links": "wires"}
    live = parse_scenario(TWO, "mine.yaml", parse_overrides((given,), target="ebpf"))
    with pytest.raises(InputError, match="virtual: only --target sim has that"):
        live.check_against(live.fabric())
    assert "virtual" not in parse_scenario(TWO, "mine.yaml").to_dict()


def test_lossless_links_are_no_buckets() -> None:
    sets = ("virtual.links=buckets", "transports.mrc=false", "transports.rocev2-pfc=null")
    scenario = parse_scenario(TWO, "mine.yaml", parse_overrides(sets, target="sim"))
    with pytest.raises(InputError, match=r"virtual.links: rocev2-pfc has lossless links, which are wires"):
        scenario.check_against(scenario.fabric())


def test_a_buffer_that_holds_no_frames_is_refused() -> None:
    sets = ("transports.mrc=false", "transports.tcp=false", "transports.rocev2-credits={buffer: 4 KiB}")
    scenario = parse_scenario(TWO, "mine.yaml", parse_overrides(sets, target="sim"))
    with pytest.raises(InputError, match=r"rocev2-credits\.buffer: 4096 bytes .* give at least \d+ bytes"):
        scenario.check_against(scenario.fabric())
