from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments.measure.validity import Load, judge
from experiments.report.examine import Evidence, examine
from experiments.report.plots import draw_all, representative
from experiments.report.result import Run, result_of, result_schema, save_result
from experiments.report.table import print_result, us
from experiments.run.system import describe_system
from experiments.spec.scenario import load_scenario
from tests.support.json_schema import violations
from topologies import Fabric


@pytest.fixture(scope="module")
def evidence(told: Path, lab: Fabric) -> Evidence:
    return examine(told, lab, "h0", "h6")


@pytest.fixture(scope="module")
def run(evidence: Evidence) -> Run:
    load = Load(10**8, 0.5, 0.0, 0.1, 10**6, "sender", 0, 0.2)
    validity = replace(evidence.validity, loads=(load,) * 12)
    return Run(load_scenario("link-kill"), "ebpf", "lab", evidence.trials, validity, describe_system(), 123)


@pytest.fixture
def result(run: Run) -> dict[str, Any]:
    return copy.deepcopy(result_of(run))


def text_of(result: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_result(result, console)
    return console.export_text()


def test_a_result_fulfils_its_schema(result: dict[str, Any], tmp_path: Path) -> None:
    path = save_result(tmp_path, result)
    assert list(tmp_path.iterdir()) == [path]
    assert list(violations(json.loads(path.read_text()), result_schema())) == []


def test_the_schema_holds_what_the_contract_names() -> None:
    schema = result_schema()
    assert {
        "schema", "scenario", "target", "topology", "seed", "system", "valid", "validity", "trials",
        "summary",
    } <= set(schema["required"])  # fmt: skip
    assert {
        "fault", "detect_us", "switch_us", "whole_us", "rtt_us", "lost_packets", "retransmitted_packets",
        "bytes_delivered", "integrity",
    } <= set(schema["$defs"]["trial"]["required"])  # fmt: skip
    assert {"kind", "where", "t_before_ns", "t_after_ns"} <= set(schema["$defs"]["fault"]["required"])
    assert {"n", "p50", "p90", "p99", "max"} <= set(schema["$defs"]["summary"]["required"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), "other/1"),
        (("valid",), "yes"),
        (("trials", 0, "detect_us"), "fast"),
        (("trials", 0, "whole_us"), -1.0),
        (("trials", 0, "fault", "t_before_ns"), 1.5),
        (("trials", 0, "lost_packets"), None),
        (("summary", "whole_us", "n"), -1),
        (("summary", "whole_us", "ci95_p50"), [1.0]),
        (("target",), "tofino"),
    ],
)
def test_the_schema_refuses_what_is_wrong(result: dict[str, Any], path: tuple[Any, ...], value: Any) -> None:
    place: Any = result
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert len(list(violations(result, result_schema()))) == 1
    del place[path[-1]]
    assert len(list(violations(result, result_schema()))) == 1


def test_trials_without_times_are_a_result_too(run: Run, evidence: Evidence, tmp_path: Path) -> None:
    from experiments.measure.analysis import Measured

    none = Measured(None, reason="the fault hit no packet: none was sent")
    blank = replace(
        evidence.trials[0], detect=none, switch=none, whole=none, lost_packets=0, first_hit_ns=None
    )
    result = result_of(replace(run, trials=(blank, evidence.trials[1])))
    assert list(violations(json.loads(json.dumps(result, allow_nan=False)), result_schema())) == []
    assert result["trials"][0]["whole_us"] is None
    assert result["summary"]["whole_us"]["n"] == 1
    assert result["summary"]["whole_us"]["missing"] == 1
    assert "in 1 of 2 trials the fault hit no packet" in text_of(result, 200)
    empty = result_of(replace(run, trials=(blank,)))
    assert empty["summary"]["detect_us"]["p50"] is None
    assert "No trial gave a recovery time" in text_of(empty)
    assert [p.name for p in draw_all(tmp_path, evidence.trace, [blank], evidence.sender_events, "x")] == [
        "ev-activity"
    ]
    assert draw_all(tmp_path, evidence.trace, [], evidence.sender_events, "x") == ()


def test_the_summary_is_that_of_the_trials(result: dict[str, Any]) -> None:
    times = sorted(trial["whole_us"] for trial in result["trials"])
    summary = result["summary"]["whole_us"]
    assert (summary["n"], summary["min"], summary["max"]) == (12, times[0], times[-1])
    assert summary["p50"] == pytest.approx((times[5] + times[6]) / 2)
    # 12 values: the 3rd and the 10th hold the median with 96.1 %, the 4th and the 9th with 85.4 %
    assert summary["ci95_p50"] == [times[2], times[9]]
    trial = result["trials"][0]
    assert trial["whole_rtts"] == pytest.approx(trial["whole_us"] / trial["rtt_us"], abs=0.001)


def test_integrity_of_the_run_is_the_first_that_broke(run: Run, evidence: Evidence) -> None:
    trials = (
        evidence.trials[0],
        replace(evidence.trials[1], integrity="message 3 differs"),
        evidence.trials[2],
    )
    result = result_of(replace(run, trials=trials))
    assert result["integrity"] == "message 3 differs"
    shown = text_of(result, 200)
    assert "DATA DAMAGED: message 3 differs" in shown
    assert "Every byte" not in shown


def test_the_table_fits_eighty_columns_and_cuts_nothing(result: dict[str, Any]) -> None:
    shown = text_of(result)
    assert max(map(len, shown.splitlines())) <= 80
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    for trial in result["trials"]:
        assert trial["fault"]["where"] in shown
        assert us(trial["whole_us"]) in shown
    assert us(result["summary"]["whole_us"]["p50"]) in shown
    assert "Valid: the machine kept up" in shown


def test_an_invalid_run_says_so(run: Run) -> None:
    drops = judge((), capture_drops={"sender": 3})
    result = result_of(replace(run, validity=drops))
    assert result["valid"] is False
    shown = text_of(result, 200)
    assert "NOT VALID" in shown
    assert "the capture at the sender lost 3 packets" in shown
    assert "Valid:" not in shown


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0.0, "0.00"),
        (3.456, "3.46"),
        (41.26, "41.3"),
        (412.6, "413"),
        (1234.5, "1 234"),
        (9.999, "10.0"),
    ],
)
def test_microseconds_read_well(value: float | None, text: str) -> None:
    assert us(value) == text


def test_pictures_are_drawn(evidence: Evidence, tmp_path: Path) -> None:
    pictures = draw_all(
        tmp_path, evidence.trace, evidence.trials, evidence.sender_events, "link-kill on lab (ebpf)"
    )
    assert [picture.name for picture in pictures] == [
        "recovery",
        "delivered-rate",
        "times-cdf",
        "ev-activity",
    ]
    for picture in pictures:
        svg, png = picture.files
        assert png.read_bytes().startswith(b"\x89PNG")
        assert "<svg" in svg.read_text()
    first = pictures[0].files[0].read_bytes()
    again = draw_all(
        tmp_path, evidence.trace, evidence.trials, evidence.sender_events, "link-kill on lab (ebpf)"
    )
    assert again[0].files[0].read_bytes() == first


def test_the_representative_trial_is_the_median_one(evidence: Evidence) -> None:
    middle = representative(evidence.trials).whole.ns
    assert middle is not None
    slower = sum((trial.whole.ns or math.inf) > middle for trial in evidence.trials)
    assert slower == 5
    with pytest.raises(ValueError, match="no trial"):
        representative([])


def test_the_system_is_described(tmp_path: Path) -> None:
    program = tmp_path / "switch.json"
    program.write_bytes(b"{}")
    system = describe_system(program, {"target_version": "1"})
    assert system["p4_json_sha256"] == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert system["target_version"] == "1"
    assert system["cpus"] >= system["cpus_usable"] >= 1
    assert system["memory_bytes"] > 10**8
    assert system["kernel"]
    assert describe_system()["p4_json_sha256"] is None
    json.dumps(system)
