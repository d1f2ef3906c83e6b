"""Two results side by side, and what is refused as one."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.report.compare import load_result, median_rtt_us, ratio, render_comparison
from linux.errors import InputError
from mrclab.cli import main

TIMES = ("first_hit_us", "detect_us", "switch_us", "whole_us", "whole_since_hit_us")


def result(p50: float | None, rtt: float | None, **over: Any) -> dict[str, Any]:
    p90 = None if p50 is None else 2 * p50
    return {
        "schema": "mrclab.result/1",
        "scenario": "link-kill",
        "topology": "tiny",
        "target": "ebpf",
        "seed": 1,
        "parameters": {"target": "auto", "trials": 2, "workload": {"rate_bps": 10}},
        "valid": True,
        "validity": {"reasons": []},
        "integrity": "ok",
        "trials": [{"rtt_us": rtt}, {"rtt_us": rtt}],
        "summary": {name: {"p50": p50, "p90": p90} for name in TIMES},
    } | over


def text_of(a: dict[str, Any], b: dict[str, Any]) -> str:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(render_comparison(a, b))
    return console.export_text()


def save(directory: Path, data: object) -> str:
    directory.mkdir()
    (directory / "result.json").write_text(json.dumps(data))
    return str(directory)


def test_medians_stand_beside_each_other_with_their_ratio_and_in_rtts() -> None:
    text = text_of(result(500, 50), result(5000, 1000, target="bmv2"))
    whole = next(line.split() for line in text.splitlines() if line.strip().startswith("whole  "))
    assert whole == ["whole", "500", "1", "000", "5", "000", "10", "000", "10.0", "-", "-", "10.0", "5.0"]
    rtt = next(line.split() for line in text.splitlines() if line.strip().startswith("RTT"))
    assert rtt == ["RTT", "50.0", "1", "000", "20.0"]


def test_the_size_of_the_difference_is_told_with_its_interval() -> None:
    def trials(*times: float) -> list[dict[str, Any]]:
        return [{"rtt_us": 50, "whole_us": time} for time in times]

    a, b = result(200, 50, trials=trials(100, 200, 300)), result(2000, 50, trials=trials(1000, 2000, 3000))
    whole = next(line.split() for line in text_of(a, b).splitlines() if line.strip().startswith("whole  "))
    assert "10.0" in whole
    assert "1.00" in whole
    assert any("-" in word and word != "-" for word in whole)


def test_parameters_that_differ_are_named_but_not_the_target() -> None:
    other = result(1, 1, parameters={"target": "bmv2", "trials": 2, "workload": {"rate_bps": 99}})
    text = text_of(result(1, 1), other)
    assert "differ in workload.rate_bps (10 and 99)" in text
    assert "differ in" not in text_of(result(1, 1), result(2, 2))


def test_a_run_that_is_not_valid_says_why() -> None:
    bad = result(1, 1, valid=False, validity={"reasons": ["the CPUs were 99% busy"]}, integrity="torn")
    text = text_of(result(1, 1), bad)
    assert "NOT VALID (the CPUs were 99% busy)" in text
    assert "DATA DAMAGED: torn" in text


def test_what_was_not_measured_is_a_dash() -> None:
    assert median_rtt_us(result(1, None)) is None
    assert ratio(0.0, 4.0) is None
    assert ratio(2.0, 5.0) == 2.5
    assert "-" in text_of(result(None, None), result(1, 1))


def test_the_command_exits_as_the_others_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = save(tmp_path / "a", result(5, 1)), save(tmp_path / "b", result(9, 1))
    assert main(["compare", a, b]) == 0
    assert "whole" in capsys.readouterr().out
    assert main(["compare", a, str(tmp_path / "none")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mrclab: no result in ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("data", [[], {"schema": "other/1"}, "x"])
def test_another_file_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(InputError, match="not a result"):
        load_result(save(tmp_path / "x", data))
