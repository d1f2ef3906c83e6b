"""The workload `program`: its keys, and the errors that it reports in one line."""

from __future__ import annotations

import pytest

from mrclab.cli import main
from mrclab.experiments.live.needs import require_workload
from mrclab.experiments.spec.plan import plan_text
from mrclab.experiments.spec.program_workload import Program, units_of
from mrclab.experiments.spec.scenario import load_scenario, parse_scenario
from mrclab.linux.errors import InputError, MachineError

TEXT = """\
name: own
topology: lab
transports: [mrc]
workload:
  kind: program
  senders: [h0]
  programs:
    - {host: h6, run: "server --port 5000", listens: 5000}
    - host: h0
      run: [client, "a b"]
      exit_code: 3
      metrics: {rate: {pattern: 'rate=([0-9.]+)', unit: MB/s}}
repetitions: 1
"""


def test_commands_are_words_and_pairs_follow_the_senders() -> None:
    scenario = parse_scenario(TEXT, "x")
    assert isinstance(scenario.workload, Program)
    assert [program.run for program in scenario.workload.programs] == [
        ("server", "--port", "5000"),
        ("client", "a b"),
    ]
    placement = scenario.placement(scenario.fabric(), 1)
    assert (placement.hosts, placement.pairs) == (("h6", "h0"), ((1, 0),))
    assert units_of(scenario.to_dict()["workload"]) == {"rate": "MB/s"}
    assert "workload: program (h6: server --port 5000, h0: client 'a b')" in plan_text(scenario)
    both = parse_scenario(TEXT.replace("  senders: [h0]\n", ""), "x")
    assert both.placement(both.fabric(), 1).pairs == ((0, 1), (1, 0))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate=([0-9.]+)", "rate=[0-9.]+", "has 0 groups: put the number, and nothing else, in brackets"),
        ("rate=([0-9.]+)", "rate=(", "is no regular expression"),
        ("[h0]", "[h5]", "h5 sends, but has no program"),
        ("server --port 5000", "server 'open", "is no command"),
        ("rate: {", "Rate-1: {", "'Rate-1' is no name"),
        ("listens: 5000", "listens: 70000", "listens"),
        ("transports: [mrc]", "transports: [rocev2]", "a program is sent by MRC only"),
    ],
)
def test_bad_input_is_refused_in_one_line(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError) as found:
        parse_scenario(TEXT.replace(old, new), "x")
    assert said in str(found.value)
    assert "\n" not in str(found.value)


def test_a_host_that_the_fabric_lacks_is_named() -> None:
    scenario = parse_scenario(TEXT.replace("host: h6", "host: h60"), "x")
    with pytest.raises(InputError, match=r"programs: lab has no host 'h60' \(it has h0 to h7\)"):
        scenario.check_against(scenario.fabric())


def test_a_program_that_the_machine_lacks_is_named_with_the_mend() -> None:
    scenario = parse_scenario(TEXT.replace("server --port", "no-such-program --port"), "x")
    with pytest.raises(MachineError, match="no program 'no-such-program' here: install it, or give its path"):
        require_workload(scenario)


def test_virtual_time_refuses_programs_and_names_the_way(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "program-kill", "--target", "sim", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "mrclab exec --record FILE" in said
    assert "kind: recorded" in said
    assert said.count("\n") == 1


def test_the_shipped_scenario_fits_its_fabric_on_each_target() -> None:
    for target in ("ebpf", "bmv2"):
        scenario = load_scenario("program-kill", target=target)
        scenario.check_against(scenario.fabric())
