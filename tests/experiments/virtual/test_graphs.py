"""Traces and generated training steps, run as scenarios in virtual time while a link is cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrclab.cli import main
from mrclab.experiments.result.file import load_result
from mrclab.hosts.options import idle_rtt_ns
from mrclab.hosts.workloads.player import BARRIER_BYTES
from mrclab.hosts.workloads.recorded import header
from mrclab.linux.errors import InputError
from mrclab.results import load, load_many
from mrclab.topologies import build_fabric

FAST = {"rate": "100 Gbit/s", "delay": "500 ns"}
SCENARIO: dict[str, Any] = {
    "name": "graph",
    "topology": {
        "name": "small",
        "planes": 2,
        "t0": 2,
        "t1": 2,
        "hosts": 8,
        "links": {"host": FAST, "fabric": FAST},
    },
    "transports": ["mrc"],
    "repetitions": 1,
    "warmup": "10 us",
}
LLM = {"kind": "llm", "data": 2, "tensor": 2, "pipeline": 2, "layers": 2, "hidden": 64, "tokens": 64}


def write(tmp_path: Path, **changes: Any) -> Path:
    file = tmp_path / "scenario.yaml"
    file.write_text(yaml.safe_dump({**SCENARIO, **changes}))
    return file


def run(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
    assert main(["run", str(write(tmp_path, **changes)), "--target", "sim", "--out", str(out)]) == 0
    result = load_result(out)
    assert result["valid"]
    return dict(result)


def metric(result: dict[str, Any], name: str) -> list[float]:
    return list(result["transports"]["mrc"]["samples"][0]["metrics"][name])


def test_a_generated_step_and_its_trace_take_the_same_time(tmp_path: Path) -> None:
    generated = run(tmp_path, workload={**LLM, "flops": 1e10})
    options = [f"--{key}={value}" for key, value in LLM.items() if key != "kind"]
    assert main(["chakra", "make", str(tmp_path / "t"), *options, "--flops=1e10"]) == 0
    groups = str(tmp_path / "t" / "groups.json")
    played = run(tmp_path, workload={"kind": "trace", "path": str(tmp_path / "t"), "groups": groups})
    # Chakra's durations are in whole microseconds.
    assert metric(played, "step_us")[0] == pytest.approx(metric(generated, "step_us")[0], rel=0.02)


@pytest.mark.parametrize("pauses", [0, 1.0])
def test_a_recording_is_delivered_to_the_byte_while_a_link_is_cut(tmp_path: Path, pauses: float) -> None:
    """200 requests with a window of 8: request k is posted when request k - 8 is complete."""
    request = {"qpn": 1, "peer": "h5", "peer_qpn": 2, "imm": 0, "signaled": 1, "status": 0}
    lines = [
        {**request, "posted_ns": 1000 * max(0, k - 7), "completed_ns": 1000 * (k + 1) - 1, "bytes": 65536 + k}
        for k in range(200)
    ]
    fabric = build_fabric(json.dumps(SCENARIO["topology"]), "topology")
    file = tmp_path / "h0.jsonl"
    file.write_text(header(fabric, "h0") + "".join(json.dumps(line) + "\n" for line in lines))
    faults = [{"kind": "blackhole", "where": "p0-t0-0:p0-t1-0", "at": "100 us", "duration": "1 s"}]
    workload = {"kind": "recorded", "path": str(file), "pauses": pauses}
    whole, cut = run(tmp_path, workload=workload), run(tmp_path, workload=workload, faults=faults)
    barriers = 2 * BARRIER_BYTES * 2  # one message of each rank, before and after
    for result in (whole, cut):
        assert result["bytes_delivered"] == sum(line["bytes"] for line in lines) + barriers
        assert len(metric(result, "fct_us")) == len(lines)
    # The limit is eight requests one after another on two planes of 100 Gbit/s, 5 % of headers, and an RTT.
    most_us = 1.05 * 8 * 65736 * 8 / 200e3 + idle_rtt_ns(fabric, "h0") / 1e3
    assert max(metric(whole, "fct_us")) < most_us
    assert metric(cut, "end_us")[0] > metric(whole, "end_us")[0]


def test_a_cut_link_makes_a_step_longer_and_loses_nothing(tmp_path: Path) -> None:
    faults = [{"kind": "blackhole", "where": "p0-t0-0:p0-t1-0", "at": "20 us", "duration": "1 s"}]
    whole = run(tmp_path, workload=LLM)
    cut = run(tmp_path, workload=LLM, faults=faults)
    assert metric(cut, "step_us")[0] > metric(whole, "step_us")[0]


def test_a_failed_job_names_the_rank_that_gave_up_and_not_those_that_were_stopped(tmp_path: Path) -> None:
    """Rank 7 is cut off. Rank 0 does not talk to rank 7 and only waits."""
    faults = [{"kind": "blackhole", "where": "h7:p0-t0-1", "at": "20 us"}]
    transports = {"rocev2": {"options": {"timeout_exponent": 8}}}
    file = write(tmp_path, workload=LLM, faults=faults, transports=transports, measure={"capture": False})
    main(["run", str(file), "--target", "sim", "--out", str(tmp_path / "out")])
    (sample,) = load_result(tmp_path / "out")["transports"]["rocev2"]["samples"]
    assert "gave up on rank" in sample["failure"]


@pytest.mark.parametrize(
    ("workload", "text"),
    [
        ({**LLM, "data": 4}, "16 ranks, 8 places on small: take a larger topology, or ranks_per_host: 2"),
        ({**LLM, "layers": 3}, "layers 3 is no multiple of pipeline 2"),
        ({**LLM, "algorithms": {"all-reduce": "star"}}, "no 'star' for all-reduce: ring"),
        ({**LLM, "algorithms": {"sum": "ring"}}, "no operation 'sum': all-reduce"),
        ({"kind": "trace", "path": "nowhere"}, "no trace: a file, or NAME"),
    ],
)
def test_bad_input_is_refused_in_one_line(
    tmp_path: Path, workload: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(write(tmp_path, workload=workload)), "--target", "sim", "--dry-run"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_what_a_trace_holds_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chakra", "make", str(tmp_path / "t"), "--data=2", "--hidden=64", "--tokens=64"]) == 0
    assert main(["chakra", "show", str(tmp_path / "t"), "--groups", str(tmp_path / "t" / "groups.json")]) == 0
    shown = capsys.readouterr().out
    assert "t: 2 ranks" in shown
    assert "all-reduce" in shown


def test_a_traffic_matrix_gives_completion_times(tmp_path: Path) -> None:
    matrix = tmp_path / "m.cm"
    matrix.write_text("Nodes 8\nConnections 2\n0->4 start 0 size 400000\n1->5 start 5000000 size 8000\n")
    result = run(tmp_path, workload={"kind": "matrix", "path": str(matrix)})
    large, small = metric(result, "fct_us")
    # 400,000 bytes at 200 Gbit/s take 16 us, and a round trip of four hops takes about 5 us.
    assert 16 < large < 30
    assert 3 < small < 8
    assert 1 <= metric(result, "slowdown@10kB")[0] < 1.5


def test_random_arrivals_give_the_slowdown_by_size(tmp_path: Path) -> None:
    workload = {"kind": "arrivals", "load": 0.3, "sizes": "hadoop", "duration": "20 us"}
    result = run(tmp_path, workload=workload)
    assert len(metric(result, "fct_us")) > 5
    # The RTT is for a full packet between racks. A few bytes within a rack take less.
    assert 0.2 < min(metric(result, "slowdown")) < max(metric(result, "slowdown")) < 20


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "hierarchical"])
def test_an_all_reduce_takes_what_its_algorithm_says(tmp_path: Path, algorithm: str) -> None:
    workload = {
        "kind": "collective",
        "size": "1 MiB",
        "ranks_per_host": 2,
        "algorithms": {"all-reduce": algorithm},
    }
    step_us = metric(run(tmp_path, workload=workload), "step_us")[0]
    # Sixteen ranks on eight NICs of 200 Gbit/s. With ring and hierarchy each NIC sends 2 x 7/8 MiB (73 us).
    # With halving and doubling each NIC sends nearly twice as much.
    least_us = {"ring": 73, "hierarchical": 73, "halving-doubling": 140}[algorithm]
    assert least_us < step_us < 3 * least_us


def test_two_jobs_have_a_step_each_and_slow_each_other_down(tmp_path: Path) -> None:
    exchange = {"kind": "collective", "operation": "all-to-all", "size": "1 MiB"}
    alone = metric(run(tmp_path, workload={**exchange, "ranks": 4, "placement": "spread"}), "step_us")[0]
    jobs = {"a": {**exchange, "ranks": 4}, "b": {**exchange, "ranks": 8}}
    both = run(tmp_path, workload={"kind": "tenants", "jobs": jobs, "ranks_per_host": 2})
    first, second = (metric(both, f"step_us@{name}")[0] for name in "ab")
    assert max(first, second) == pytest.approx(metric(both, "step_us")[0], rel=0.05)
    assert alone > 0


@pytest.mark.parametrize(
    ("jobs", "text"),
    [
        ({"a": LLM}, "jobs"),
        ({"a": {**LLM, "steps": 2}, "b": LLM}, "steps belongs to all jobs"),
        ({"a": {"kind": "collective"}, "b": LLM}, "a job among others needs a number of ranks"),
    ],
)
def test_bad_jobs_are_refused_in_one_line(
    tmp_path: Path, jobs: dict[str, Any], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    workload = {"kind": "tenants", "jobs": jobs}
    assert main(["run", str(write(tmp_path, workload=workload)), "--target", "sim", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_frames_of_several_runs_name_the_run(tmp_path: Path) -> None:
    workload = {"kind": "collective", "operation": "barrier", "ranks": 4}
    run(tmp_path, workload=workload)
    directory = next(path for path in tmp_path.iterdir() if path.name.startswith("out"))
    one, many = load(directory), load_many({"a": directory, "b": directory})
    assert len(one.samples) == 2
    assert many.samples["run"].tolist() == ["a", "a", "b", "b"]
    assert len(many.series) == 2 * len(one.series)
    assert next(iter(many.trials)) == next(iter(many.events)) == "run"
    with pytest.raises(InputError, match="no directories"):
        load_many([])


def test_queues_over_time_are_drawn(tmp_path: Path) -> None:
    jam = {"kind": "collective", "operation": "gather", "size": "64 KiB"}
    result = run(tmp_path, workload=jam, measure={"queues": True, "series": "1 us"})
    (found,) = [row["queues"] for row in result["transports"]["mrc"]["details"]]
    # Seven hosts send to h0, so frames wait at the last hop.
    longest = {name: max(waits) for name, waits in found["wait_ns"].items()}
    assert max(longest, key=lambda name: longest[name]).endswith(">h0")
    assert found["bin_us"] == 1
    out = next(path for path in tmp_path.iterdir() if path.name.startswith("out"))
    assert (out / "queues.svg").stat().st_size > 1000
