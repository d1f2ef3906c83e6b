"""The page of a comparison, from a result made up here: two transports, two repetitions, a fault in each."""

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.measure.noticed import NO_ROUTING, Noticed
from experiments.report.comparison_plots import draw_comparison
from experiments.report.comparison_result import comparison_result
from experiments.report.page.index import row_of
from experiments.report.page.write import write_index, write_report
from experiments.report.result import save_result
from experiments.run.system import describe_system
from experiments.spec.scenario import load_scenario
from tests.experiments.report.test_page import Page

_SCENARIO = """
name: two
description: a stream over two transports
claim: one recovers sooner
topology: tiny
transports: {mrc: , slow: {use: mrc}}
workload: {kind: stream, message_bytes: 8 KiB, rate: 10 Mbit/s, duration: 100 ms}
faults: [{kind: blackhole, where: "p0-t0-0:p0-t1-1", at: 20 ms, duration: 50 ms}]
repetitions: 2
"""


def repetition(number: int, whole_us: float) -> dict[str, Any]:
    begin = 10**9 * number
    fault = {
        "kind": "blackhole",
        "where": "p0-t0-0:p0-t1-1",
        "t_before_ns": begin + 20_000_000,
        "t_after_ns": begin + 20_010_000,
        "restore_before_ns": begin + 70_000_000,
        "restore_after_ns": begin + 70_010_000,
        "direction": "both",
    }
    return {
        "number": number,
        "failure": None,
        "problem": None,
        "metrics": {
            "whole_us": [whole_us],
            "gap_us": [whole_us / 2],
            "goodput_mbps": [9.5 + number],
            "latency_us": [100.0 + i for i in range(50)],
            "busbw_gbps@1MiB": [0.5, 0.6, 0.7],
        },
        "counters": {"sent_packets": 10},
        "validity": {"reasons": [], "notes": [], "loads": []},
        "bytes_delivered": 1000,
        "data": f"data/x-{number}.npz",
        "measure_ns": begin,
        "end_ns": begin + 10**8,
        "series": {"start_us": 0.0, "bin_us": 1000.0, "bytes": [1250] * 100},
        "links": {"start_us": 0.0, "bin_us": 100_000.0, "bytes": {}},
        "faults": [fault],
        "fault_params": [{}],
        "set_aside": [],
        "noticed": [Noticed(None, None, NO_ROUTING, NO_ROUTING).to_dict()],
    }


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("scenario") / "two.yaml"
    file.write_text(_SCENARIO)
    comparison = load_scenario(str(file))
    repetitions = {
        "mrc": [repetition(0, 500.0), repetition(1, 700.0)],
        "slow": [repetition(0, 3e6), repetition(1, 3.1e6)],
    }
    found = comparison_result(comparison, "ebpf", "tiny", repetitions, describe_system())
    return found | {"verdict": {"holds": True, "because": "6 <000 times", "paper": "microseconds"}}


@pytest.fixture(scope="module")
def page(result: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("comparison")
    save_result(directory, result)
    return write_report(directory)[0]


def test_the_page_is_whole_and_says_the_verdict(page: Path) -> None:
    found = Page(page.read_text())
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert all(reference.startswith(("#", "data:")) for reference in found.references)
    words = " ".join(" ".join(found.words).split())
    assert "the claim holds 6 <000 times" in words
    assert "one recovers sooner" in words
    assert "The paper: microseconds" in words
    assert "p0-t0-0:p0-t1-1" in words
    assert "3.05 s" in words
    assert "3 050 000" in words, "the table is in one unit throughout"
    assert "Every transport carries the same workload (" in words
    assert f"slow (no detect and switch): {NO_ROUTING}" in words


def test_every_picture_that_the_data_allow_is_drawn(result: dict[str, Any], tmp_path: Path) -> None:
    names = [picture.name for picture in draw_comparison(tmp_path, result)]
    assert names == ["delivered", "cdf-whole_us", "cdf-gap_us", "cdf-latency_us", "busbw"]


def test_no_faults_and_no_series_is_a_page_too(result: dict[str, Any], tmp_path: Path) -> None:
    bare = json.loads(json.dumps(result))
    bare |= {"trials": [], "verdict": {"holds": None, "because": "too few"}}
    for found in bare["transports"].values():
        found["faults"] = []
        found["series"] = [series | {"bytes": []} for series in found["series"]]
        found["summary"] = {}
        for sample in found["samples"]:
            sample["metrics"] = {}
    save_result(tmp_path, bare)
    text = write_report(tmp_path)[0].read_text()
    assert "cannot be told" in text
    assert text.count("<svg") == 1  # the fabric


def test_the_index_gives_the_verdict_beside_the_paper(
    page: Path, result: dict[str, Any], tmp_path: Path
) -> None:
    row = row_of(result, "x")
    assert (row.verdict, row.colour, row.paper) == ("the claim holds", "good", "microseconds")
    text = write_index([page.parent], tmp_path / "index.html").read_text()
    assert "one recovers sooner" in text
    assert "microseconds" in text
