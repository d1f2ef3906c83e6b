"""A report groups similar notes of repetitions. It also shows how many faults were requested and made."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from mrclab.experiments.measure.evidence import Evidence
from mrclab.experiments.measure.load import Load
from mrclab.experiments.measure.repetition import measure
from mrclab.experiments.report.grouping import grouped
from mrclab.experiments.report.page.content import result_page
from mrclab.experiments.report.table import faults_text, headline
from mrclab.experiments.result.numbers import us

TWO: dict[str, Any] = {"transports": {"mrc": {}, "frr-bfd": {}}}
BUSY = "in 1 of 1 trials the CPUs were {}% busy (limit 95%)"


def test_a_line_for_each_kind_with_the_worst_and_where() -> None:
    lines = [f"mrc: repetition {n}: {BUSY.format(96 + n)}" for n in range(3)]
    lines += [f"frr-bfd: repetition 1: {BUSY.format(97)}", "frr-bfd: repetition 0: no fault was made"]
    assert grouped(lines, TWO) == [
        f"at worst, {BUSY.format(98)} [mrc repetitions 0, 1, 2; frr-bfd repetition 1]",
        "no fault was made [frr-bfd repetition 0]",
    ]


def test_names_are_not_taken_for_sizes() -> None:
    lines = [f"mrc: switch failure: p0-t0-{n} ended by itself" for n in range(2)]
    assert len(grouped(lines, TWO)) == 2


def test_lines_of_a_single_repetition_stay_as_they_are() -> None:
    lines = ["the capture at h0 lost 3 packets", "the capture at h2 lost 4 packets"]
    assert grouped(lines, {"transports": {"mrc": {}}}) == lines


@pytest.mark.slow
def test_faults_asked_for_and_made_are_told_apart(spray: dict[str, Any]) -> None:
    result = deepcopy(spray)
    made = len(result["trials"])
    result["parameters"] = result["parameters"] | {"transports": [{}]}
    for asked, aside, text in (
        (made, 0, f"{made} faults"),
        (made, 3, f"{made} faults ({made} asked for, {made + 3} made, 3 set aside)"),
        (made - 4, 0, f"{made} faults ({made - 4} asked for, the others made again; all count)"),
        (made + 2, 0, f"{made} faults of {made + 2} asked for"),
    ):
        result["parameters"]["faults"] = [{"trials": asked}]
        result["set_aside"] = result["trials"][:aside]
        assert faults_text(result) == text


@pytest.mark.slow
def test_terminal_and_page_have_the_figures_of_the_json(spray: dict[str, Any], tmp_path: Any) -> None:
    row = spray["summary"]["recovered_us"]
    sentence = headline(spray)
    assert f"{us(row['p50'])} us in the median" in sentence
    assert f"+- {us(row['max_error'])} us" in sentence
    page = result_page(tmp_path, spray | {"claim": "a claim"}, None)
    assert sentence.replace(" us", " µs").replace("+-", "±") in page
    assert f"mrclab report {tmp_path}" in page


@pytest.mark.parametrize("busy", [0.5, 0.99])
def test_a_soak_is_judged_by_its_data_and_not_by_its_speed(evidence: Evidence, busy: float) -> None:
    load = Load(10**9, busy, 0.0, 0.0, 0, "agent", 0, 0.0)
    soak = replace(evidence, captures={}, recording=None, event_logs={}, loads=(load,), wanted=None)
    found = measure(soak)
    assert found.trials == ()
    assert len(found.faults) == len(evidence.faults)
    assert found.validity.valid
    assert any("99% busy" in note for note in found.validity.notes) == (busy > 0.95)
    assert not measure(replace(soak, problem="a byte", failures=("an agent ended",))).validity.valid
