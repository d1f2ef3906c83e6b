"""`--jobs`: repetitions in several processes give the same files and results as in one process."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import pytest

from mrclab import workers
from mrclab.cli import main
from mrclab.experiments.result.file import load_result
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.experiments.virtual.engine import run_scenario
from mrclab.linux.errors import MachineError
from mrclab.linux.processes import environment
from mrclab.run_jobs import Part, longest, run_in_processes
from mrclab.workers import copies, end_workers, run_or_end
from tests.support.left_processes import processes_with, until
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


@pytest.mark.parametrize("capture", [True, False], ids=["frames", "objects"])
def test_two_at_a_time_leave_the_same_bytes_as_one_after_another(capture: bool, tmp_path: Path) -> None:
    measure = {"series": "10 us", "capture": capture}
    scenario = parse_scenario(json.dumps({**ASKED, "measure": measure}), "two.yaml")
    found = {}
    for name, run in (("one", run_scenario), ("two", partial(run_in_processes, copies(2)))):
        (tmp_path / name).mkdir()
        outcome, steps = Outcome(), list[int]()
        run(scenario, tmp_path / name, outcome, say=lambda text: None, step=steps.append)
        assert steps[-1] == scenario.steps
        found[name] = outcome.repetitions
    assert list(found["one"]) == list(found["two"]) == ["mrc", "rocev2"]
    assert found["one"] == found["two"]
    one, two = files(tmp_path / "one"), files(tmp_path / "two")
    assert any(name.endswith(".pcap") for name in one) == capture
    assert one == two


def test_the_repetitions_of_the_slowest_transport_go_first() -> None:
    waiting = [Part(place, number) for place in (0, 1, 2) for number in (1, 2)]
    assert longest(waiting, {0: 1.0, 1: 3.0, 2: 2.0}) == Part(1, 1)
    assert longest(waiting, {1: 3.0}) == Part(0, 1)  # transports without a time may be slower
    assert longest(waiting[:1], {0: 1.0, 1: 3.0}) == Part(0, 1)


def test_a_repetition_whose_process_was_killed_is_named(tmp_path: Path) -> None:
    scenario = parse_scenario(json.dumps({**ASKED, "repetitions": 4, "transports": ["mrc"]}), "two.yaml")
    outcome = Outcome()

    def kill_one(done: int) -> None:
        for worker in multiprocessing.active_children()[: min(done, 1)]:
            worker.kill()

    with pytest.raises(MachineError, match=r"was killed \(under way: mrc \d") as caught:
        run_in_processes(copies(2), scenario, tmp_path, outcome, say=lambda text: None, step=kill_one)
    assert "--jobs" in str(caught.value)
    assert len(outcome.repetitions["mrc"]) < 4
    assert not multiprocessing.active_children()


def test_only_in_its_task_a_worker_handles_sigterm() -> None:
    """While a worker sends a result, the pool would catch a handler's exception and then hang."""
    with copies(1).pool as pool:
        in_task = pool.submit(run_or_end, signal.getsignal, signal.SIGTERM).result()
        outside = pool.submit(signal.getsignal, signal.SIGTERM).result()
    assert callable(in_task)
    assert outside is signal.SIG_DFL


def drop_the_end(said: str) -> None:
    """Create the file ``said``, and ignore the exception of the first SIGTERM as a finalizer would."""
    with contextlib.suppress(SystemExit):
        Path(said).touch()
        signal.pause()
    signal.pause()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is no alarm")
def test_a_task_that_loses_the_signal_ends_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "END_S", 0.2)
    file = tmp_path / "begun"
    with copies(1).pool as pool:
        task = pool.submit(run_or_end, drop_the_end, str(file))
        until(file.exists)
        end_workers()
        with pytest.raises(BrokenProcessPool):
            task.result()


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_processes_and_leaves_what_was_measured(
    number: signal.Signals, tmp_path: Path
) -> None:
    scratch, out, file = tmp_path / "scratch", tmp_path / "out", tmp_path / "two.yaml"
    scratch.mkdir()
    file.write_text(json.dumps({**ASKED, "repetitions": 100, "transports": ["mrc"]}))
    words = [sys.executable, "-m", "mrclab", "run", str(file), "--jobs", "2", "--out", str(out)]
    env = {**environment(), "TMPDIR": str(scratch)}
    with subprocess.Popen(words, env=env, start_new_session=True, stderr=subprocess.PIPE, text=True) as run:
        until(lambda: len(list(out.glob("mrc-*/repetition.json"))) > 2)  # one result is there
        os.killpg(run.pid, number)  # a terminal also sends it to all processes
        _, said = run.communicate()
    assert run.returncode == 128 + number
    assert "Traceback" not in said
    until(lambda: processes_with("TMPDIR", str(scratch)) == [])
    assert not list(scratch.iterdir())
    assert load_result(out)["unfinished"]


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
    results, pictures = [], []
    for jobs in ("1", "2"):
        out = tmp_path / jobs
        assert main(["run", str(file), "--jobs", jobs, "--out", str(out)]) == 0
        results.append(load_result(out))
        pictures.append({name: text for name, text in files(out).items() if name.endswith((".svg", ".png"))})
    assert results[0]["transports"] == results[1]["transports"]
    assert len(pictures[0]) > 2
    assert pictures[0] == pictures[1]
