from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from experiments.run.link_kill import fitting_rate
from experiments.spec.comparison import is_comparison
from experiments.spec.scenario import Workload, load_scenario, parse_scenario, shipped_scenarios
from linux.errors import InputError
from topologies import load_fabric

BASE = """\
name: mine
topology: lab
workload:
  rate: 10 Mbit/s
trials: 3
topologies:
  wide: {hold: 400 ms, workload: {window: 64}}
"""


def test_what_is_shipped_loads_and_fits_its_topology_and_the_others() -> None:
    assert "link-kill" in shipped_scenarios()
    for name in (name for name in shipped_scenarios() if not is_comparison(name)):
        for topology in ("tiny", "lab", "wide"):
            scenario = load_scenario(name, topology=topology)
            scenario.check_against(load_fabric(topology))
            assert scenario.name == name


def test_link_kill_is_twenty_trials_within_a_minute_on_lab() -> None:
    scenario = load_scenario("link-kill")
    assert (scenario.topology, scenario.trials, scenario.target) == ("lab", 20, "auto")
    assert scenario.warmup_ns + scenario.trials * (scenario.hold_ns + scenario.settle_ns) < 30e9
    assert scenario.endpoints(load_fabric("lab")) == ("h0", "h6")


def test_bmv2_gets_a_stream_of_its_own() -> None:
    here, there = (load_scenario("link-kill", target=name).workload for name in ("ebpf", "bmv2"))
    assert (here.payload_bytes, here.burst) == (256, 8)
    assert 0 < here.busy < 1
    assert (there.payload_bytes, there.burst, there.busy, there.rate_bps) == (4096, 0, 0.0, 10_000_000)


def test_only_a_nic_that_paces_can_be_slowed_down() -> None:
    with pytest.raises(InputError, match=r"^--set workload.burst: workload.busy needs a burst"):
        load_scenario("link-kill", target="ebpf", settings=["workload.burst=0"])
    with pytest.raises(InputError, match=r"^--set workload.busy: workload.busy must be from 0 to 1, not 75"):
        load_scenario("link-kill", target="ebpf", settings=["workload.busy=75"])


@pytest.mark.parametrize(
    ("made", "busy", "rate"),
    [(100, 0.5, 100), (100, 1.0, 75), (40, 1.0, 30), (60, 0.5, 90), (1, 1.0, 10), (0, 0.0, 10)],
)
def test_the_rate_is_what_keeps_an_endpoint_as_busy_as_wanted(made: int, busy: float, rate: int) -> None:
    workload = Workload(rate_bps=100 * 10**6, burst=2, busy=0.75)
    assert fitting_rate(made * 10**6, busy, workload) == rate * 10**6


def test_a_topology_s_part_and_the_wishes_are_laid_over_in_order() -> None:
    plain = load_scenario("link-kill", target="ebpf")
    wide = load_scenario("link-kill", topology="wide", target="ebpf")
    assert (plain.hold_ns, wide.hold_ns) == (100_000_000, 400_000_000)
    assert wide.workload.window == plain.workload.window
    wished = load_scenario(
        "link-kill",
        topology="wide",
        trials=2,
        settings=["hold=7 ms", "workload.rate=50 Mbit/s", "trials=9", "fault.where=p0-t0-0:p0-t1-31"],
    )
    assert (wished.hold_ns, wished.workload.rate_bps, wished.trials) == (7_000_000, 50_000_000, 2)
    assert wished.fault.where == "p0-t0-0:p0-t1-31"
    for where in "wide", "my/wide.yaml":
        assert (
            load_scenario("link-kill", target="ebpf", settings=[f"topology={where}"]).hold_ns == 400_000_000
        )
        assert load_scenario("link-kill", target="ebpf", topology=where).hold_ns == 400_000_000


def test_a_target_s_part_is_laid_over_that_of_the_topology() -> None:
    text = BASE + "targets:\n  bmv2: {hold: 700 ms, workload: {rate: 2 Mbit/s}}\n"
    on_bmv2 = parse_scenario(text.replace("topology: lab", "topology: wide\ntarget: bmv2"), "mine.yaml")
    assert (on_bmv2.hold_ns, on_bmv2.workload.rate_bps) == (700_000_000, 2_000_000)
    assert on_bmv2.workload.window == 64
    on_ebpf = parse_scenario(text + "target: ebpf\n", "mine.yaml")
    assert (on_ebpf.hold_ns, on_ebpf.workload.rate_bps) == (100_000_000, 10_000_000)


def test_auto_takes_the_part_of_the_target_that_it_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = load_scenario("link-kill", target="auto")
    assert without == replace(load_scenario("link-kill", target="ebpf"), target="auto")
    (tmp_path / "simple_switch_grpc").touch(mode=0o755)
    found = load_scenario("link-kill", target="auto")
    assert found == replace(load_scenario("link-kill", target="bmv2"), target="auto")
    assert found.workload.rate_bps < without.workload.rate_bps


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("targets: {tofino: {trials: 2}}", "tofino"),
        ("targets: {bmv2: {target: ebpf}}", "targets cannot choose another target"),
        ("targets: {bmv2: {speed: 1}}", "speed"),
    ],
)
def test_a_mistake_in_a_target_s_part_is_named(part: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_scenario(BASE + part + "\n", "mine.yaml")


def test_a_switch_death_names_a_switch_on_the_way() -> None:
    fabric = load_fabric("tiny")
    settings = ["fault.kind=switch-death", "fault.where=p0-t1-1"]
    load_scenario("link-kill", topology="tiny", settings=settings).check_against(fabric)
    settings[1] = "fault.where=p0-t0-0:p0-t1-1"
    with pytest.raises(InputError, match="is on no path"):
        load_scenario("link-kill", topology="tiny", settings=settings).check_against(fabric)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE)
    scenario = load_scenario(str(file))
    assert (scenario.name, scenario.trials, scenario.workload.rate_bps) == ("mine", 3, 10_000_000)
    assert yaml.safe_load(yaml.safe_dump(scenario.to_dict())) == scenario.to_dict()


@pytest.mark.parametrize(
    ("line", "new", "number", "words"),
    [
        (1, "nam: mine", 1, "no key 'nam'"),
        (2, "topology: 3", 2, "topology must be text"),
        (4, "  rate: fast", 4, "workload.rate must be a rate"),
        (4, "  rate: 1 bit/s", 4, "workload.rate must be from"),
        (4, "  rat: 3", 4, "workload has no key 'rat'"),
        (4, "  payload_bytes: 9000", 4, "workload.payload_bytes must be from 256 to 4096"),
        (4, "  message_bytes: 8", 4, "workload.message_bytes must be from 9 to"),
        (5, "trials: 0", 5, "trials must be from 1"),
        (5, "trials: many", 5, "trials must be a whole number"),
        (5, "trials: true", 5, "trials must be a whole number"),
        (5, "hold: 0", 5, "hold must be from 1 ms"),
        (5, "hold: 100", 5, "hold must be a time such as"),
        (5, "warmup: 2000000 s", 5, "warmup must be from 0 ms to 1 hour"),
        (5, "seed: -1", 5, "seed must be from 0"),
        (5, "target: tofino", 5, "target must be auto or ebpf or bmv2"),
        (5, "fault: {kind: meteor}", 5, "fault.kind must be blackhole"),
        (5, "fault: {direction: left}", 5, "fault.direction must be"),
        (5, "fault: cut", 5, "fault must be a mapping"),
        (5, "name: again", 5, "'name' is given twice"),
        (5, "trials: [", None, "not YAML"),
        (7, "  wide: {holt: 4 ms}", 7, "no key 'holt'"),
        (7, "  wide: {topology: lab}", 7, "cannot choose another topology"),
        (7, "  wide: {workload: {rat: 4}}", 7, "workload has no key 'rat'"),
    ],
)
def test_every_mistake_is_one_line_with_file_line_and_key(
    line: int, new: str, number: int | None, words: str
) -> None:
    lines = BASE.splitlines()
    lines[line - 1] = new
    with pytest.raises(InputError) as caught:
        parse_scenario("\n".join(lines), "mine.yaml")
    message = str(caught.value)
    assert words in message
    assert re.match(rf"mine\.yaml:{number or '[0-9]+'}: ", message)
    assert "\n" not in message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("trials", "--set: 'trials' is not KEY=VALUE"),
        ("=3", "--set: '=3' is not KEY=VALUE"),
        ("workload.=3", "--set: 'workload.=3' is not KEY=VALUE"),
        ("trials=abc", "--set trials: trials must be a whole number, not 'abc'"),
        ("workload.speed=3", "--set workload.speed: workload has no key 'speed'"),
        ("speed=3", "--set speed: a scenario has no key 'speed'"),
        ("workload=3", "--set workload: workload must be a mapping"),
        ("trials=[", "--set trials: '[' is not a YAML value"),
        ("topologies.wide=3", "--set topologies.wide: a scenario has no key 'topologies'"),
    ],
)
def test_a_wrong_wish_is_one_line_too(setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("link-kill", settings=[setting])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_are_named_as_the_user_gave_them() -> None:
    with pytest.raises(InputError, match=r"^--trials: trials must be from 1"):
        load_scenario("link-kill", trials=0)
    with pytest.raises(InputError, match=r"^--target: target must be"):
        load_scenario("link-kill", target="asic")


def test_unknown_scenarios_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no scenario 'nope': give a file or one of .*link-kill"):
        load_scenario("nope")
    with pytest.raises(InputError, match="cannot read scenario"):
        load_scenario(str(tmp_path))
    binary = tmp_path / "b.yaml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        load_scenario(str(binary))


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("workload.src=h99", "workload.src: lab has no host 'h99'"),
        ("workload.dst=h1", "h0 and h1 are in one rack"),
        ("workload.dst=h0", "h0 and h0 are in one rack"),
        ("fault.where=p0-t0-1:p0-t1-0", "is on no path from h0 to h6"),
    ],
)
def test_what_the_fabric_lacks_is_refused(setting: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        load_scenario("link-kill", settings=[setting]).check_against(load_fabric("lab"))
