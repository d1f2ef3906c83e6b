"""What the terminal shows of a result, and of two."""

from __future__ import annotations

import csv
import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from mrclab.cli import main
from mrclab.experiments.report.compare import effect, render_compare, values
from mrclab.experiments.report.numbers import amount, figure, scaled, us, words_of
from mrclab.experiments.report.result import save_result
from mrclab.experiments.report.table import render_result
from mrclab.experiments.report.upgrade import upgrade

DATA = Path(__file__).parent / "data"
OLD = sorted(DATA.glob("*-1.json"))


def said(what: RenderableType, width: int = 80) -> str:
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(what)
    return console.export_text()


def test_a_result_fits_eighty_columns_and_cuts_nothing(spray: dict[str, Any], both: dict[str, Any]) -> None:
    for result in (spray, both, *(upgrade(json.loads(path.read_text())) for path in OLD)):
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


def test_the_command_takes_old_and_new_results(
    spray: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, empty = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    for directory in (a, b, empty):
        directory.mkdir()
    save_result(a, spray)
    (b / "result.json").write_text((DATA / "link-kill-1.json").read_text())
    assert main(["compare", str(a), str(b)]) == 0
    assert "recovered" in capsys.readouterr().out
    assert main(["compare", str(a), str(empty)]) == 2
    assert "no result in" in capsys.readouterr().err
    assert main(["compare", str(a), str(DATA / "soak-1.json")]) == 2
    assert "no metric in common" in capsys.readouterr().err


def test_many_runs_are_compared_for_programs_and_spreadsheets(
    spray: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directories = []
    for number in range(3):
        slower = deepcopy(spray)
        for trial in slower["trials"]:
            if trial["recovered_us"] is not None:
                trial["recovered_us"] *= number + 1
        directories.append(str(tmp_path / str(number)))
        Path(directories[-1]).mkdir()
        save_result(Path(directories[-1]), slower)
    assert main(["compare", *directories, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["directory"] for run in found["runs"].values()] == directories
    ratios = {row["b"]: row["ratio"] for row in found["rows"] if row["metric"] == "recovered_us"}
    assert ratios == pytest.approx({"B": 2, "C": 3}, rel=1e-4)
    assert main(["compare", *directories, "--csv"]) == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert len(lines) == len(found["rows"])
    row = next(line for line in lines if line["metric"] == "recovered_us" and line["b"] == "C")
    assert float(row["ratio_low"]) <= float(row["ratio"]) <= float(row["ratio_high"])
    assert (row["directory_a"], row["directory_b"]) == (directories[0], directories[2])
    assert main(["compare", *directories]) == 0
    tables = capsys.readouterr().out
    assert "C/A" in tables
    assert max(map(len, tables.splitlines())) <= 80


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (0.0, "0.00"), (3.424, "3.42"), (41.27, "41.3"), (1234.4, "1,234")]
)
def test_microseconds_read_well(value: float | None, text: str) -> None:
    assert us(value) == text


def test_figures_have_one_way_to_be_written() -> None:
    assert [figure(v) for v in (None, 0, 0.1239, 41.27, 1234.5)] == ["-", "0", "0.124", "41.3", "1,234"]
    assert scaled("recovered_us", [None, 250_000.0]) == (1e3, "recovered_ms")
    assert scaled("time_us@1MiB", [250_000.0]) == (1e3, "time_ms@1MiB")
    assert scaled("goodput_mbps", [250_000.0]) == (1.0, "goodput_mbps")
    assert [amount(v, "recovered_us") for v in (12.34, 2_500.0, 250_000.0, 2_000_000.0)] == [
        "12.3 µs",
        "2,500 µs",
        "250 ms",
        "2 s",
    ]
    assert words_of("recovered_since_loss_us") == "recovered since loss"
    assert words_of("busbw_gbps@1MiB") == "busbw, 1MiB"
