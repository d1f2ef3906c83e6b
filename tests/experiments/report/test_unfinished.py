"""A run that was ended early keeps its measurements, in a form that all commands can read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mrclab.cli import main
from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.repetition import REPETITION_FILE, load_repetition, measure, save_repetition
from mrclab.experiments.report.build import Run, build, load_repetitions, load_run, rebuild, save_run
from mrclab.experiments.result.file import load_result
from mrclab.experiments.result.model import Result
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.hosts.transports.table import TRANSPORTS
from mrclab.linux.errors import InputError

WHY = "the switch server (process 7) was ended by SIGKILL"
PARAMETERS = {"description": "", "topology": "lab", "workload": {"kind": "spray"}, "repetitions": 2}


@pytest.fixture(scope="module")
def cut(evidence: Evidence) -> Evidence:
    quiet = Load(10**8, 0.4, 0.0, 0.01, 10**6, "sender", 0, 0.1)
    faults = evidence.faults[:5]
    return replace(evidence, faults=faults, wanted=12, interrupted=WHY, loads=(quiet,) * len(faults))


@pytest.fixture(scope="module")
def run() -> Run:
    return Run(
        "link-kill",
        PARAMETERS,
        "ebpf",
        "lab",
        1,
        (TRANSPORTS["mrc"], TRANSPORTS["tcp"]),
        {},
        figure="headline",
    )


@pytest.mark.slow
def test_the_trial_that_was_not_over_does_not_count(cut: Evidence) -> None:
    found = measure(cut)
    assert [trial["trial"] for trial in found.trials] == [0, 1, 2, 3]
    assert [trial["trial"] for trial in found.trials_aside] == [4]
    assert found.validity.reasons == (f"the run was ended after 4 of 12 trials: {WHY}",)


@pytest.mark.slow
def test_a_repetition_comes_back_from_the_disk_as_it_was(cut: Evidence, run: Run, tmp_path: Path) -> None:
    found = measure(cut)
    save_repetition(tmp_path, found)
    again = load_repetition(tmp_path)
    once, twice = (build(run, {"mrc": [r]}, unfinished=WHY) for r in (found, again))
    assert {**once, "finished": ""} == {**twice, "finished": ""}


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"number": "x"}', "\xff"])
def test_a_damaged_repetition_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / REPETITION_FILE).write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"repetition.json: not a repetition") as refused:
        load_repetition(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_an_unfinished_result_says_so_first_and_gives_no_verdict(cut: Evidence, run: Run) -> None:
    result = build(run, {"mrc": [measure(cut)]}, unfinished=WHY)
    Result.model_validate(json.loads(json.dumps(result, allow_nan=False)))
    assert result["validity"]["reasons"][0] == f"the run is not finished, 0 of 4 repetitions are: {WHY}"
    assert not result["valid"]
    assert list(result["transports"]) == ["mrc"]
    assert "verdict" not in result


@pytest.mark.slow
def test_the_result_of_a_killed_run_is_made_when_it_is_asked_for(
    evidence: Evidence, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(tmp_path, run)
    (tmp_path / "mrc-0").mkdir()
    with pytest.raises(InputError, match="the run ended before anything was measured"):
        rebuild(tmp_path)
    save_repetition(tmp_path / "mrc-0", measure(evidence))
    assert main(["report", str(tmp_path)]) == 0
    result = load_result(tmp_path)
    assert "1 of 4 repetitions" in result["validity"]["reasons"][0]
    assert load_repetitions(tmp_path, load_run(tmp_path))["mrc"][0].interrupted is None
    assert (tmp_path / "report.html").exists()
    capsys.readouterr()


@pytest.mark.slow
def test_what_is_finished_is_not_made_again(evidence: Evidence) -> None:
    scenario: Any = load_scenario("link-kill", settings=["repetitions=3"])
    (transport,) = scenario.transports
    outcome = Outcome()
    done = measure(evidence)
    outcome.add("mrc", replace(done, number=2))
    outcome.add("mrc", replace(done, number=1, interrupted=WHY))
    assert outcome.left(scenario, transport) == (0, 1)
    outcome.add("mrc", replace(done, number=1))
    assert outcome.left(scenario, transport) == (0,)
    assert [r.number for r in outcome.repetitions["mrc"]] == [1, 2]
