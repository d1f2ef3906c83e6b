from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from mrclab.experiments.spec.faults import SequentialFaults
from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.scenario import load_scenario, parse_scenario
from mrclab.experiments.spec.workloads import Mesh, Spray
from mrclab.linux.errors import InputError
from mrclab.topologies import load_fabric
from mrclab.topologies.shipped import TOPOLOGIES

BASE = """\
name: mine
topology: lab
workload:
  kind: spray
  rate: 10 Mbit/s
faults: [{kind: blackhole, where: random, trials: 3}]
topologies:
  wide: {faults: {0: {hold: 400 ms}}, workload: {burst: 4}}
"""


def spray(scenario: Scenario) -> Spray:
    assert isinstance(scenario.workload, Spray)
    return scenario.workload


def sequence(scenario: Scenario) -> SequentialFaults:
    (entry,) = scenario.sequences
    return entry


@pytest.mark.parametrize("topology", ["tiny", "lab", "wide"])
@pytest.mark.parametrize("name", ["link-kill", "random-faults"])
def test_what_is_shipped_fits_other_topologies_too(name: str, topology: str) -> None:
    load_scenario(name, topology=topology).check_against(load_fabric(topology))


def test_link_kill_is_twenty_trials_within_a_minute_on_lab() -> None:
    scenario = load_scenario("link-kill")
    entry = sequence(scenario)
    assert (scenario.topology, entry.trials, scenario.target) == ("lab", 20, "auto")
    assert scenario.warmup_ns + entry.trials * (entry.hold_ns + entry.settle_ns) < 30e9
    assert scenario.placement(load_fabric("lab"), 1).hosts == ("h0", "h6")
    assert (scenario.steps, scenario.measure.capture) == (20, True)
    workload = spray(load_scenario("link-kill", target="ebpf"))
    assert workload.rate_bps == 20_000 * workload.payload_bytes * 8  # most machines can send so fast


def test_bmv2_gets_a_stream_of_its_own() -> None:
    here, there = (spray(load_scenario("link-kill", target=name)) for name in ("ebpf", "bmv2"))
    assert (here.payload_bytes, here.burst) == (256, 16)
    assert 0 < here.busy < 1
    assert (there.payload_bytes, there.burst, there.busy, there.rate_bps) == (4096, 0, 0.0, 10_000_000)


def test_only_a_nic_that_paces_can_be_slowed_down() -> None:
    with pytest.raises(InputError, match=r"workload.busy needs a burst"):
        load_scenario("link-kill", target="ebpf", settings=["workload.burst=0"])
    with pytest.raises(InputError, match=r"^--set workload.busy: workload.busy must be from 0 to 1, not 75"):
        load_scenario("link-kill", target="ebpf", settings=["workload.busy=75"])


def test_a_duration_may_be_hours() -> None:
    for text, hours in (("1h", 1), ("90 min", 1.5)):
        workload = load_scenario("random-faults", duration=text).workload
        assert isinstance(workload, Mesh)
        assert workload.duration_ns == hours * 3600e9


def test_trials_are_faults_in_sequence_or_else_repetitions() -> None:
    assert sequence(load_scenario("link-kill", trials=7)).trials == 7
    assert load_scenario("headline", trials=7).repetitions == 7
    assert load_scenario("headline", trials=2).steps == 16


def test_a_topology_s_part_and_the_overrides_are_laid_over_in_order(tmp_path: Path) -> None:
    plain = load_scenario("link-kill", target="ebpf")
    wide = load_scenario("link-kill", topology="wide", target="ebpf")
    assert (sequence(plain).hold_ns, sequence(wide).hold_ns) == (100_000_000, 400_000_000)
    assert spray(wide).burst == spray(plain).burst
    wished = load_scenario(
        "link-kill",
        topology="wide",
        trials=2,
        settings=[
            "faults.0.hold=7 ms",
            "workload.rate=50 Mbit/s",
            "faults.0.trials=9",
            "faults.0.where=p0-t0-0:p0-t1-31",
        ],
    )
    entry = sequence(wished)
    assert (entry.hold_ns, spray(wished).rate_bps, entry.trials) == (7_000_000, 50_000_000, 2)
    assert entry.where == ("p0-t0-0:p0-t1-31",)
    mine = tmp_path / "wide.yaml"
    mine.write_text(TOPOLOGIES.text("wide")[0])
    for where in "wide", str(mine):
        by_setting = load_scenario("link-kill", target="ebpf", settings=[f"topology={where}"])
        assert sequence(by_setting).hold_ns == 400_000_000
        assert sequence(load_scenario("link-kill", target="ebpf", topology=where)).hold_ns == 400_000_000


def test_a_target_s_part_is_laid_over_that_of_the_topology() -> None:
    text = BASE + "targets:\n  bmv2: {faults: {0: {hold: 700 ms}}, workload: {rate: 2 Mbit/s}}\n"
    on_bmv2 = parse_scenario(text.replace("topology: lab", "topology: wide\ntarget: bmv2"), "mine.yaml")
    assert (sequence(on_bmv2).hold_ns, spray(on_bmv2).rate_bps) == (700_000_000, 2_000_000)
    assert spray(on_bmv2).burst == 4
    on_ebpf = parse_scenario(text + "target: ebpf\n", "mine.yaml")
    assert (sequence(on_ebpf).hold_ns, spray(on_ebpf).rate_bps) == (100_000_000, 10_000_000)


def test_a_target_s_part_may_differ_by_topology() -> None:
    part = "{workload: {rate: 2 Mbit/s}, topologies: {wide: {workload: {rate: 3 Mbit/s}}}}"
    text = BASE + f"targets:\n  bmv2: {part}\n"
    rates = {
        (topology, target): spray(
            parse_scenario(
                text.replace("topology: lab", f"topology: {topology}\ntarget: {target}"), "mine.yaml"
            )
        ).rate_bps
        for topology in ("lab", "wide")
        for target in ("bmv2", "ebpf")
    }
    assert rates["lab", "bmv2"] == 2_000_000
    assert rates["wide", "bmv2"] == 3_000_000
    assert 3_000_000 not in (rates["lab", "ebpf"], rates["wide", "ebpf"])


def test_link_kill_in_virtual_time_holds_a_cut_for_many_round_trips_of_its_fabric() -> None:
    holds = {
        name: sequence(load_scenario("link-kill", target="sim", topology=name)).hold_ns
        for name in ("paper-c", "tiny", "lab", "two-racks", "wide")
    }
    assert holds.pop("paper-c") == 150_000  # a round trip takes 13 us in paper-c
    assert set(holds.values()) == {5_000_000}  # in the other topologies it takes 140 us


def test_auto_takes_the_part_of_the_target_that_it_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = load_scenario("link-kill", target="auto")
    assert without == load_scenario("link-kill", target="ebpf").model_copy(update={"target": "auto"})
    (tmp_path / "simple_switch_grpc").touch(mode=0o755)
    found = load_scenario("link-kill", target="auto")
    assert found == load_scenario("link-kill", target="bmv2").model_copy(update={"target": "auto"})
    assert spray(found).rate_bps < spray(without).rate_bps


@pytest.mark.parametrize(
    ("part", "complaint"),
    [
        ("targets: {tofino: {seed: 2}}", "tofino"),
        ("targets: {bmv2: {target: ebpf}}", "targets cannot choose another target"),
        ("targets: {bmv2: {speed: 1}}", "speed"),
        ("targets: {bmv2: {topologies: {wide: {speed: 1}}}}", "speed"),
    ],
)
def test_a_mistake_in_a_target_s_part_is_named(part: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_scenario(BASE + part + "\n", "mine.yaml")


def test_a_switch_death_names_a_switch_on_the_way() -> None:
    fabric = load_fabric("tiny")
    settings = ["faults.0.kind=switch-death", "faults.0.where=p0-t1-1"]
    load_scenario("link-kill", topology="tiny", settings=settings).check_against(fabric)
    settings[1] = "faults.0.where=p0-t0-0:p0-t1-1"
    with pytest.raises(InputError, match="matches nothing in tiny: give a switch"):
        load_scenario("link-kill", topology="tiny", settings=settings).check_against(fabric)


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(BASE)
    scenario = load_scenario(str(file))
    assert (scenario.name, sequence(scenario).trials, spray(scenario).rate_bps) == ("mine", 3, 10_000_000)
    assert yaml.safe_load(yaml.safe_dump(scenario.to_dict())) == scenario.to_dict()


@pytest.mark.parametrize(
    ("line", "new", "number", "words"),
    [
        (1, "nam: mine", 1, "no key 'nam'"),
        (1, "name: ../../mine", 1, "name must be the name of a directory"),
        (1, "name: ''", 1, "name must be the name of a directory"),
        (2, "topology: 3", 2, "topology must be text"),
        (6, "transports: {../mine: {use: mrc}}", 6, "must be the name of a directory"),
        (5, "  rate: fast", 5, "workload.rate must be a rate"),
        (5, "  rate: 1 bit/s", 5, "workload.rate must be from"),
        (5, "  rat: 3", 5, "workload has no key 'rat'"),
        (5, "  payload_bytes: 9000", 5, "workload.payload_bytes must be from 256 to 4096"),
        (5, "  message_bytes: 8", 5, "workload.message_bytes must be from 9 bytes to"),
        (6, "repetitions: 0", 6, "repetitions must be from 1"),
        (6, "repetitions: many", 6, "repetitions must be a whole number"),
        (6, "repetitions: true", 6, "repetitions must be a whole number"),
        (6, "limit: 0", 6, "limit must be from 1 ms"),
        (6, "limit: 100", 6, "limit must be a time such as"),
        (6, "warmup: 2000000 s", 6, "warmup must be from 0 ms to 3600 s"),
        (6, "seed: -1", 6, "seed must be from 0"),
        (6, "target: tofino", 6, "target must be auto, ebpf, bmv2 or sim"),
        (6, "faults: [{kind: meteor, where: x}]", 6, "faults[0].kind must be blackhole"),
        (6, "faults: [{kind: loss, where: x, direction: left}]", 6, "faults[0].direction must be"),
        (6, "faults: cut", 6, "faults must be a list"),
        (6, "name: again", 6, "'name' is given twice"),
        (6, "faults: [", None, "not YAML"),
        (8, "  wide: {holt: 4 ms}", 8, "no key 'holt'"),
        (8, "  wide: {topology: lab}", 8, "cannot choose another topology"),
        (8, "  wide: {workload: {rat: 4}}", 8, "workload has no key 'rat'"),
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
        ("seed", "--set: 'seed' is not KEY=VALUE"),
        ("=3", "--set: '=3' is not KEY=VALUE"),
        ("workload.=3", "--set: 'workload.=3' is not KEY=VALUE"),
        ("seed=abc", "--set seed: seed must be a whole number, not 'abc'"),
        ("workload.speed=3", "--set workload.speed: workload has no key 'speed'"),
        ("speed=3", "--set speed: a scenario has no key 'speed'"),
        ("workload=3", "--set workload: workload must be a mapping"),
        ("seed=[", "--set seed: '[' is not a YAML value"),
        ("topologies.wide=3", "--set topologies.wide: a scenario has no key 'topologies'"),
    ],
)
def test_a_wrong_override_is_one_line_too(setting: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario("link-kill", settings=[setting])
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_options_are_named_as_the_user_gave_them() -> None:
    with pytest.raises(InputError, match=r"^--trials: faults\[0\].trials must be from 1"):
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
        ("workload.dst=h0", "workload.src and workload.dst are both h0"),
        ("faults.0.where=p0-t0-1:p0-t1-0", "is on no path of the traffic"),
    ],
)
def test_what_the_fabric_lacks_is_refused(setting: str, words: str) -> None:
    with pytest.raises(InputError, match=re.escape(words)):
        load_scenario("link-kill", settings=[setting]).check_against(load_fabric("lab"))
