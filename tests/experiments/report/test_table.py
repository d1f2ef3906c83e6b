"""The terminal's tables for a result, and for a comparison of two results."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from mrclab.cli import main
from mrclab.experiments.report.compare import compared, effect, render_columns, render_compare, values
from mrclab.experiments.report.table import render_result
from mrclab.experiments.result.file import save_result
from mrclab.experiments.result.numbers import us
from mrclab.run_scenario import exit_code


def said(what: RenderableType, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


def test_a_result_fits_eighty_columns_and_cuts_nothing(spray: dict[str, Any], both: dict[str, Any]) -> None:
    for result in (spray, both):
        text = said(render_result(result))
        assert max(len(line) for line in text.splitlines()) <= 80
        assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_one_transport_shows_its_trials_and_its_recovery(spray: dict[str, Any]) -> None:
    text = said(render_result(spray))
    for trial in spray["trials"]:
        assert trial["fault"]["where"] in text
    median = us(spray["summary"]["recovered_us"]["p50"])
    assert f"Recovered after {median} us in the median" in text
    assert "Every byte was delivered as it was sent. Valid:" in " ".join(text.split())


def test_what_nobody_felt_is_counted_and_no_number(both: dict[str, Any]) -> None:
    text = said(render_result(both))
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("tcp")]
    faults = str(sum(trial["transport"] == "tcp" for trial in both["trials"]))
    assert ["tcp", "0", faults, "-", "-", "-", "-"] in rows
    assert "nothing was captured" in " ".join(text.split())
    trial = deepcopy(both)
    trial["transports"] = {"tcp": both["transports"]["tcp"]}
    trial["trials"] = [t for t in both["trials"] if t["transport"] == "tcp"]
    trial["summary"] = {n: both["transports"]["tcp"]["summary"][n] for n in both["summary"]}
    text = said(render_result(trial))
    assert "not felt" in text
    assert "No fault gave a recovery time" in text


def test_a_run_that_is_not_valid_says_why_after_all_else(spray: dict[str, Any]) -> None:
    result = deepcopy(spray) | {"valid": False, "integrity": "byte 7 is wrong"}
    result["validity"] = {"reasons": [f"reason {i}" for i in range(9)], "notes": ["a note"]}
    text = said(render_result(result))
    assert "DATA DAMAGED: byte 7 is wrong. NOT VALID, do not quote these figures:" in " ".join(text.split())
    assert "! reason 0" in text
    assert "and 4 more" in text
    assert "- a note" in text


def test_a_transport_that_never_ended_is_said_not_to_have_finished(both: dict[str, Any]) -> None:
    result = deepcopy(both)
    assert "DID NOT FINISH" not in said(render_result(result))
    name, transport = next(iter(result["transports"].items()))
    transport["samples"][0]["failure"] = "stopped before it was over"
    wanted = f"DID NOT FINISH: {name} in 1 of {len(transport['samples'])} repetitions."
    assert wanted in " ".join(said(render_result(result)).split())


def test_a_program_that_failed_is_named_before_the_validity(spray: dict[str, Any]) -> None:
    result = deepcopy(spray)
    result["parameters"]["workload"] = {
        "kind": "program",
        "programs": [{"host": "h0", "metrics": {"bandwidth": {"unit": "MiB/s"}}}],
    }
    summary = result["transports"]["mrc"]["summary"]
    summary["bandwidth"] = summary.pop("goodput_mbps", next(iter(summary.values())))
    assert "A PROGRAM FAILED" not in said(render_result(result))
    assert "bandwidth, MiB/s" in said(render_result(result))
    result["transports"]["mrc"]["samples"][0]["failure"] = "h0 ib_write_bw exit code 1 (No such device)"
    text = " ".join(said(render_result(result)).split())
    of = len(result["transports"]["mrc"]["samples"])
    wanted = f"A PROGRAM FAILED: h0 ib_write_bw exit code 1 (No such device), in 1 of {of} repetitions. Valid"
    assert wanted in text
    assert "DID NOT FINISH" not in text
    assert "Every byte was delivered" not in text
    assert exit_code(result) == 1


def test_two_results_side_by_side(spray: dict[str, Any], both: dict[str, Any]) -> None:
    slower = deepcopy(spray)
    for trial in slower["trials"]:
        if trial["recovered_us"] is not None:
            trial["recovered_us"] *= 3
    found = effect(spray, slower, "mrc", "recovered_us")
    assert found.ratio == pytest.approx(3, rel=1e-4)
    text = said(render_compare(spray, slower))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "recovered_us" in text
    assert "rtt_us" in text
    other = deepcopy(spray)
    other["parameters"]["workload"] = other["parameters"]["workload"] | {"rate_bps": 5}
    differences = " ".join(said(render_compare(spray, other)).split())
    assert "differ in workload.rate_bps (10000000 and 5)" in differences
    assert "mrc" in said(render_compare(spray, both))
    assert values(spray, "mrc", "goodput_mbps")


def test_a_run_in_slow_motion_is_said_to_differ(spray: dict[str, Any]) -> None:
    """A result at full speed does not have the key."""
    other = deepcopy(spray)
    other["parameters"] |= {"slower": 4.0, "expect": ["x"]}
    for pair, said_so in (((spray, other), "not set and 4.0"), ((other, spray), "4.0 and not set")):
        assert f"differ in slower ({said_so})" in " ".join(said(render_compare(*pair)).split())


def test_a_comparison_has_medians_and_numbers_of_all_values(spray: dict[str, Any]) -> None:
    """A result keeps only some of very many values, and an even number of values has no middle one."""
    two, many = deepcopy(spray), deepcopy(spray)
    two["trials"] = two["trials"][:2]
    for trial, rate in zip(two["trials"], (100, 300), strict=True):
        trial["packets_per_s"] = rate
    many["transports"]["mrc"]["summary"]["goodput_mbps"]["n"] = 123_456
    rows = {row.metric: row for row in compared(two, two)}
    assert rows["packets_per_s"].a == 200
    assert {row.metric: row.n_b for row in compared(spray, many)}["goodput_mbps"] == 123_456


def test_several_results_have_a_column_each(spray: dict[str, Any]) -> None:
    slower = deepcopy(spray)
    row = slower["transports"]["mrc"]["summary"]["recovered_us"]
    row["p50"] = 3 * row["p50"]
    text = said(render_columns({"A": spray, "B": slower, "C": spray}))
    assert max(len(line) for line in text.splitlines()) <= 80
    (line,) = [line.split() for line in text.splitlines() if "recovered_us" in line and "since" not in line]
    assert line[-2:] == ["3", "1"]


def test_the_command_refuses_what_cannot_be_compared(
    spray: dict[str, Any], both: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, empty, other = (tmp_path / name for name in "abcd")
    for directory in (a, b, empty, other):
        directory.mkdir()
    save_result(a, spray)
    save_result(b, both)
    bare = {name: {**part, "summary": {}} for name, part in spray["transports"].items()}
    save_result(other, {**spray, "transports": bare, "trials": []})
    assert main(["compare", str(a), str(b)]) == 0
    assert "recovered" in capsys.readouterr().out
    assert main(["compare", str(a), str(empty)]) == 2
    assert "no result in" in capsys.readouterr().err
    assert main(["compare", str(a), str(other)]) == 2
    assert "no metric in common" in capsys.readouterr().err
