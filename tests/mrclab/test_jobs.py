"""`--jobs`: repetitions in several processes give the files and results of one process."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.experiments.result.file import load_result
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.experiments.virtual.engine import run_scenario
from mrclab.run_jobs import run_in_processes
from tests.support.simulated_runs import INCAST, TOPOLOGY

ASKED = {
    "name": "two",
    "topology": {"name": "jobs", **TOPOLOGY},
    "target": "sim",
    "repetitions": 2,
    "warmup": "20 us",
    "limit": "1 s",
    "workload": INCAST,
    "measure": {"series": "10 us", "capture": True},
    "transports": {"mrc": {}, "rocev2": {}},
}


def files(out: Path) -> dict[str, bytes]:
    """Return the contents of all files, by their names."""
    return {p.relative_to(out).as_posix(): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


def test_two_at_a_time_leave_the_same_bytes_as_one_after_another(tmp_path: Path) -> None:
    scenario = parse_scenario(json.dumps(ASKED), "two.yaml")
    found = {}
    for name, run in (("one", run_scenario), ("two", partial(run_in_processes, 2))):
        (tmp_path / name).mkdir()
        outcome, steps = Outcome(), list[int]()
        run(scenario, tmp_path / name, outcome, say=lambda text: None, step=steps.append)
        assert steps[-1] == scenario.steps
        found[name] = outcome.repetitions
    assert list(found["one"]) == list(found["two"]) == ["mrc", "rocev2"]
    assert found["one"] == found["two"]
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert any(name.endswith(".pcap") for name in one)
    assert one == two


@pytest.mark.parametrize(
    ("jobs", "target", "said"), [("0", "sim", "1 or more"), ("2", "ebpf", "live fabric")]
)
def test_jobs_that_cannot_be_are_refused(
    jobs: str, target: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["run", "link-kill", "--target", target, "--jobs", jobs, "--out", str(out)]
    assert main(words) != 0
    assert said in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.slow
def test_run_takes_jobs(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(json.dumps(ASKED))
    results = []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        assert main(["run", str(file), "--jobs", jobs, "--out", str(out)]) == 0
        results.append(load_result(out))
    assert results[0]["transports"] == results[1]["transports"]
