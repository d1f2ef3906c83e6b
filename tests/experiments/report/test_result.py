"""The values in result.json, its JSON schema, and the errors for missing or invalid files."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.recovery import NOT_CAPTURED
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.report.build import time_summary
from mrclab.experiments.result.file import load_result, save_result
from mrclab.experiments.result.model import SCHEMA, TIMES, Result, result_schema
from mrclab.experiments.run.outcome import disturbed, in_place_of
from mrclab.linux.errors import InputError
from tests.support.synthetic_run import Story


def test_a_whole_run_gives_the_answers_that_it_was_made_from(spray: dict[str, Any], story: Story) -> None:
    for trial, answer in zip(spray["trials"], story.answers, strict=True):
        assert trial["felt"] is (answer.lost > 0)
        if answer.lost:
            assert trial["lost_packets"] == answer.lost
            assert trial["detected_us"] == pytest.approx(answer.detect / 1e3, abs=0.001)
            assert trial["rerouted_us"] == pytest.approx(max(answer.switch, 0) / 1e3, abs=0.001)
            assert trial["recovered_us"] == pytest.approx(answer.whole / 1e3, abs=0.001)
            assert trial["recovered_error_us"] is not None
            assert all(check["ok"] is not False for check in trial["checks"]), trial["checks"]
    assert spray["valid"]


@pytest.mark.slow
def test_results_fulfil_the_schema(spray: dict[str, Any], both: dict[str, Any]) -> None:
    for result in (spray, both):
        plain = json.loads(json.dumps(result, allow_nan=False))
        Result.model_validate(plain)
        jsonschema.validate(plain, result_schema())


def test_the_schema_holds_what_the_contract_names(spray: dict[str, Any]) -> None:
    for key in ("schema", "scenario", "target", "topology", "seed", "system"):
        assert key in spray
    for key in ("valid", "validity", "trials", "summary"):
        assert key in spray
    assert spray["schema"] == SCHEMA
    trial = spray["trials"][0]
    for key in (*TIMES, "rtt_us", "lost_packets", "retransmitted_packets", "bytes_delivered", "integrity"):
        assert key in trial
    assert {"kind", "where", "t_before_ns", "t_after_ns"} <= set(trial["fault"])
    assert {"n", "not_felt", "missing", "p50", "p90", "p99", "max"} <= set(spray["summary"]["recovered_us"])


@pytest.mark.parametrize(
    ("path", "value"),
    [(("schema",), "mrclab.result/1"), (("valid",), "perhaps"), (("trials", 0, "recovered_us"), "soon"),
     (("trials", 0, "whole_us"), 3.0), (("transports",), {}), (("seed",), None)],
)  # fmt: skip
def test_the_schema_refuses_what_is_wrong(spray: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    result = deepcopy(spray)
    place: Any = result
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError):
        Result.model_validate(result)


def test_a_summary_counts_what_was_not_felt_apart_from_what_is_missing() -> None:
    trials = [
        {"felt": True, "recovered_us": 5.0, "recovered_error_us": 0.5},
        {"felt": True, "recovered_us": None},
        {"felt": False, "recovered_us": None},
        {"felt": None, "recovered_us": 7.0},
    ]
    row = time_summary(trials, "recovered_us")
    assert (row["n"], row["not_felt"], row["missing"], row["p50"], row["max_error"]) == (2, 1, 1, 6.0, 0.5)


@pytest.mark.slow
def test_a_transport_without_captures_names_the_rule_that_stands_in(both: dict[str, Any]) -> None:
    trials = [trial for trial in both["trials"] if trial["transport"] == "tcp"]
    assert trials
    for trial in trials:
        assert (trial["rule"], trial["felt"], trial["recovered_us"]) == (NOT_CAPTURED, False, None)
    row = both["transports"]["tcp"]["summary"]["recovered_us"]
    assert (row["n"], row["not_felt"], row["p50"]) == (0, len(trials), None)
    assert both["verdict"]["holds"] is None


@pytest.mark.slow
def test_trials_of_an_overloaded_machine_are_set_aside_where_enough_are_left(evidence: Evidence) -> None:
    calm = Load(10**8, 0.5, 0.0, 0.0, 0, None, 0, 0.0)
    busy = replace(calm, busy=1.0)
    loads = (calm, busy, *[calm] * (len(evidence.faults) - 2))
    found = measure(replace(evidence, loads=loads, wanted=len(loads) - 1))
    assert [trial["trial"] for trial in found.trials_aside] == [1]
    assert len(found.trials) == len(loads) - 1
    assert found.validity.valid
    assert any("set aside" in note for note in found.validity.notes)
    kept = measure(replace(evidence, loads=loads, wanted=len(loads)))
    assert (len(kept.trials), kept.validity.valid) == (len(loads), False)


@pytest.mark.slow
def test_a_repetition_that_others_disturbed_is_told_in_its_place(evidence: Evidence) -> None:
    calm = Load(10**8, 0.5, 0.0, 0.0, 0, None, 0, 0.0)
    first = measure(replace(evidence, loads=(replace(calm, steal=0.5),)))
    second = measure(replace(evidence, loads=(calm,)))
    assert disturbed(first)
    assert not disturbed(second)
    both = in_place_of(first, second)
    assert both.set_aside[0]["reasons"] == first.validity.reasons
    assert "made again" in both.validity.notes[-1]


def test_a_file_that_is_missing_is_named(evidence: Evidence, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nowhere"):
        measure(replace(evidence, captures={"h0": tmp_path / "nowhere", "h6": tmp_path / "nowhere"}))


def test_results_are_written_whole_and_read_again(spray: dict[str, Any], tmp_path: Path) -> None:
    path = save_result(tmp_path, spray)
    assert load_result(tmp_path) == load_result(path) == json.loads(json.dumps(spray))
    assert [file.name for file in tmp_path.iterdir()] == ["result.json"]


@pytest.mark.parametrize("data", [[], {"schema": "x"}, {"schema": "mrclab.result/1"}])
def test_another_file_is_refused(tmp_path: Path, data: object) -> None:
    (tmp_path / "result.json").write_text(json.dumps(data))
    with pytest.raises(InputError, match=r"result\.json: not a"):
        load_result(tmp_path)
    with pytest.raises(InputError, match="no result in"):
        load_result(tmp_path / "nothing")
