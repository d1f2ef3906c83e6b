"""A scenario's own expectations: they are read, compared with intervals, and shown with their verdicts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from mrclab.experiments.judging.judge import judge, judge_expectations
from mrclab.experiments.report.table import verdict
from mrclab.experiments.spec.claim import STATISTICS, Quantity, parse_expectation
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.linux.errors import InputError

NAMES = ("mine", "mrc")
NAME = st.sampled_from(NAMES)
METRIC = st.sampled_from(["recovered_us", "latency_us", "busbw_gbps@1048576"])
NUMBER = st.floats(1e-6, 1e9)


@given(METRIC, st.sampled_from(STATISTICS), NAME, st.sampled_from(["<", "<=", ">", ">="]), NUMBER, NAME)
def test_what_is_written_is_read(
    metric: str, statistic: str, left: str, relation: str, number: float, right: str
) -> None:
    quantity = Quantity(metric, statistic, left)
    plain = parse_expectation(f"{quantity} {relation} {number!r}", NAMES)
    assert (plain.left, plain.at_most, plain.number, plain.right) == (
        quantity,
        relation[0] == "<",
        number,
        None,
    )
    ratio = parse_expectation(f"{quantity}{relation}{number!r}*[{right}]", NAMES)
    assert (ratio.number, ratio.right) == (number, Quantity(metric, statistic, right))


@given(st.text(max_size=40))
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        parse_expectation(text, NAMES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("recovered_us.p50[his] < 3", "'his', which is no transport"),
        ("recovered_us.p51[mine] < 3", "one of p50, p90"),
        ("recovered_us.p50[mine] < x.p99[mrc]", "compares p50 with p99"),
        ("recovered_us[mine] < 3", "cannot be read"),
        ("[mine] < 3", "cannot be read"),
        ("recovered_us.p50[mine] < 3; import os", "cannot be read"),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        parse_expectation(text, NAMES)


def test_a_scenario_refuses_what_cannot_be_judged_before_anything_runs() -> None:
    scenario: dict[str, Any] = {
        "name": "mine",
        "topology": "tiny",
        "workload": {"kind": "stream", "message_bytes": 8192, "rate": "1 Mbit/s", "duration": "1 s"},
        "expect": "goodput_mbps.mean[mrc] > 1",
    }
    found = parse_scenario(json.dumps(scenario), "x")
    assert found.expect == ("goodput_mbps.mean[mrc] > 1",)
    assert found.to_dict()["expect"] == ["goodput_mbps.mean[mrc] > 1"]
    del scenario["expect"]
    assert "expect" not in parse_scenario(json.dumps(scenario), "x").to_dict()
    with pytest.raises(InputError, match=r"expect.*no transport of the scenario"):
        parse_scenario(json.dumps({**scenario, "expect": ["goodput_mbps.mean[tcp] > 1"]}), "x")


def result(*expect: str, mine: list[float], mrc: list[float], valid: bool = True) -> dict[str, Any]:
    """Return the parts of a result that are judged: values of `gap_us`, and equal recovery times."""
    values = {"mine": mine, "mrc": mrc}
    return {
        "valid": valid,
        "claim": "",
        "integrity": "ok",
        "summary": {"recovered_us": {"n": 0, "p50": None}},
        "target": "sim",
        "parameters": {"expect": list(expect), "topology": "tiny", "workload": {}},
        "validity": {"reasons": [], "notes": []},
        "transports": {
            name: {
                "kind": "mrc",
                "samples": [{"failure": None, "metrics": {"gap_us": found}}],
                "details": [],
                "summary": {},
            }
            for name, found in values.items()
        },
        "trials": [
            {"transport": name, "felt": True, "recovered_us": value}
            for name, found in values.items()
            for value in found
        ],
    }


LOW, HIGH = [8.0, 9.0, 10.0, 11.0, 12.0] * 4, [18.0, 19.0, 20.0, 21.0, 22.0] * 4


@pytest.mark.parametrize("metric", ["gap_us", "recovered_us"])
@pytest.mark.parametrize("statistic", STATISTICS)
def test_a_clear_difference_is_shown_either_way(metric: str, statistic: str) -> None:
    lines = [
        f"{metric}.{statistic}[mine] < 0.8 * [mrc]",
        f"{metric}.{statistic}[mine] > [mrc]",
        f"{metric}.{statistic}[mine] < 15",
        f"{metric}.{statistic}[mrc] <= 15",
    ]
    found = judge_expectations(result(*lines, mine=LOW, mrc=HIGH))
    assert [check.holds for check in found] == [True, False, True, False]
    assert [check.asked for check in found] == lines


def test_what_the_run_cannot_tell_is_not_shown() -> None:
    wide = [1.0, 20.0, 3.0, 40.0, 9.0, 15.0]
    (open_,) = judge_expectations(result("gap_us.p50[mine] < [mrc]", mine=wide, mrc=wide[::-1]))
    (few,) = judge_expectations(result("gap_us.p50[mine] < [mrc]", mine=[1.0, 1.0], mrc=LOW))
    (absent,) = judge_expectations(result("gone_us.p50[mine] < 5", mine=LOW, mrc=LOW))
    assert (open_.holds, few.holds, absent.holds) == (None, None, None)
    assert absent.found == "mine has no gone_us"
    lost = result("recovered_us.p50[mine] < 50", mine=LOW, mrc=LOW)
    lost["trials"][0]["recovered_us"] = None
    (unfinished,) = judge_expectations(lost)
    assert (unfinished.holds, unfinished.found) == (None, "1 of 20 faults have no recovered_us with mine")


def test_a_fault_of_which_nobody_knows_whether_it_was_felt_must_have_its_time() -> None:
    """Without captures, only the detection of a fault may be known."""
    unknown = result("recovered_us.p50[mine] < 50", mine=LOW, mrc=LOW)
    for trial in unknown["trials"]:
        trial["felt"] = None
    (known,) = judge_expectations(unknown)
    assert known.holds
    unknown["trials"][0]["recovered_us"] = None
    (missing,) = judge_expectations(unknown)
    assert (missing.holds, missing.found) == (None, "1 of 20 faults have no recovered_us with mine")


def test_the_verdict_is_shown_with_its_interval_and_an_invalid_run_shows_nothing() -> None:
    for valid, holds in ((True, True), (False, None)):
        found = result("gap_us.p50[mine] < [mrc]", mine=LOW, mrc=HIGH, valid=valid)
        found["verdict"] = judge("", found, judge_expectations(found))
        assert found["verdict"]["holds"] is holds
        console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        console.print(verdict(found))
        text = console.export_text()
        word = "holds" if valid else "not valid"
        assert f"expected gap_us.p50[mine] < [mrc]: {word}, 0.5 (95 % CI 0." in text
        assert ("What was expected holds" in text) == valid
