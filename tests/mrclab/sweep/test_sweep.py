"""Sweeps: the sweep file, the names of points, and the results that are kept if a process is killed."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.linux.errors import InputError
from mrclab.linux.life import signals
from mrclab.linux.processes import environment
from mrclab.sweep import task as sweep_task
from mrclab.sweep.command import SWEEPS, check
from mrclab.sweep.executors import LocalProcesses
from mrclab.sweep.models import DEFAULTS, run_model
from mrclab.sweep.spec import Point, parse_sweep, points_of
from mrclab.sweep.table import draw, points_csv, rows_of, table_csv
from mrclab.sweep.task import Outcome, Store, Task, metrics_of, run_task, task_of
from tests.support import sweep_points
from tests.support.left_processes import processes_with, until
from tests.support.paths import ROOT

FILE = """
name: small
model: shares
fixed: {nics: 1024}
grid:
  planes: [4, 8]
  dead_links: [0, 100]
seeds: 3
"""


def tasks(seeds: int, folder: str = "") -> list[Task]:
    return [Task(n, "shares", None, None, None, None, {"folder": folder}, n, "s") for n in range(seeds)]


def test_the_grid_comes_in_order_and_the_seed_changes_fastest() -> None:
    points = points_of(parse_sweep(FILE, "f"))
    assert [point.place for point in points] == list(range(12))
    assert [(p.params["planes"], p.params["dead_links"], p.seed) for p in points[:5]] == [
        (4, 0, 1),
        (4, 0, 2),
        (4, 0, 3),
        (4, 100, 1),
        (4, 100, 2),
    ]
    assert all(point.params["nics"] == 1024 for point in points)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: a\ngrid: {}", "needs either 'model' or 'scenario'"),
        ("name: a\nmodel: shares\nscenario: link-kill\ngrid: {}", "needs either"),
        ("name: a\nmodel: weather\ngrid: {}", "bad.yaml:2: model must be"),
        ("name: ../a\nmodel: shares\ngrid: {}", "name must be a word"),
        ("name: a\nmodel: shares\ngrid: {nics: []}", "is empty"),
        ("name: a\nmodel: shares\ngrid: {nics: [1, 1]}", "has a value twice"),
        ("name: a\nmodel: shares\nfixed: {nics: 1}\ngrid: {nics: [1]}", "in fixed, too"),
        ("name: a\nmodel: shares\ngrid: {nics: [1]}\nseeds: 0", "seeds"),
        ("name: a\nmodel: shares\ngrid: {nics: [1]}\nseeds: [1, 1]", "seeds must be different"),
        ("name: a\nmodel: shares\ntarget: ebpf\ngrid: {nics: [1]}", "a model has no target"),
        ("name: a\nmodel: shares\ngrids: {nics: [1]}", "has no key 'grids'"),
        ("model: shares\ngrid: {nics: [1]}", "needs 'name'"),
    ],
)
def test_mistakes_in_the_file_are_one_line(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_sweep(text, "bad.yaml")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_too_many_points_are_refused() -> None:
    text = "name: a\nmodel: shares\nseeds: 10000\ngrid: {nics: [" + ", ".join(map(str, range(20))) + "]}"
    with pytest.raises(InputError, match="200,000 points"):
        points_of(parse_sweep(text, "f"))


def test_the_example_of_the_page_is_a_sweep() -> None:
    page = (ROOT / "docs/sweeps.md").read_text(encoding="utf-8")
    found = parse_sweep(page.split("```yaml")[1].split("```")[0], "docs/sweeps.md")
    assert check(found, points_of(found)) is None


@pytest.mark.parametrize("name", SWEEPS.names())
def test_shipped_sweeps_can_be_run(name: str) -> None:
    sweep = parse_sweep(*SWEEPS.text(name))
    assert points_of(sweep)
    assert sweep.name == name


def test_a_points_name_is_that_of_its_parameters_seed_and_source() -> None:
    sweep = parse_sweep(FILE, "f")
    one = task_of(sweep, None, Point(0, {"a": 1, "b": 2}, 1))
    assert one.name == task_of(sweep, None, Point(7, {"b": 2, "a": 1}, 1)).name
    others = [
        task_of(sweep, None, Point(0, {"a": 1, "b": 3}, 1)),
        task_of(sweep, None, Point(0, {"a": 1, "b": 2}, 2)),
        task_of(sweep, "text", Point(0, {"a": 1, "b": 2}, 1)),
        task_of(sweep, None, Point(0, {"a": 1, "b": 2}, 1), ("own.yaml", "text")),
        replace(one, source="another"),
        replace(one, target="bmv2"),
    ]
    assert len({task.name for task in [one, *others]}) == 7


@pytest.mark.parametrize(
    ("of_runs", "file"),
    [(True, "faults/kinds.py"), (True, "native/queues.c"), (False, "experiments/measure/life.py")],
)
def test_the_source_of_a_point_is_all_code_that_computes_it(
    of_runs: bool, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sweep_task.source_of.__wrapped__(of_runs)
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path) + b"# new" * path.as_posix().endswith(file)
    )
    assert sweep_task.source_of.__wrapped__(of_runs) != before


@pytest.mark.slow
@pytest.mark.parametrize(
    "named",
    [
        "scenario: link-kill\ntopology: ./own.yaml\nfixed: {faults.0.trials: 1}\ngrid: {warmup: [5 ms]}",
        "scenario: link-kill\nfixed: {faults.0.trials: 1}\ngrid: {topology: [./own.yaml]}",
        "scenario: ./mine.yaml\nfixed: {faults.0.trials: 1}\ngrid: {warmup: [5 ms]}",
    ],
    ids=["sweep", "point", "scenario"],
)
def test_a_sweep_takes_its_own_topology_and_reads_it_again_if_it_changes(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The points run in another directory, and perhaps on another machine."""
    monkeypatch.chdir(tmp_path)
    topology = (ROOT / "topologies/tiny.yaml").read_text(encoding="utf-8")
    Path("own.yaml").write_text(topology)
    scenario = (ROOT / "experiments/scenarios/link-kill.yaml").read_text(encoding="utf-8")
    Path("mine.yaml").write_text(scenario.replace("topology: paper-c", "topology: ./own.yaml"))
    Path("s.yaml").write_text(f"name: s\ntarget: sim\n{named}\n")
    words = ["sweep", "s.yaml", "--workers", "1", "--out", "out"]
    assert main(words) == 0
    first = Path("out/points.csv").read_text()
    Path("own.yaml").write_text(topology.replace("rate: 1 Gbit/s", "rate: 2 Gbit/s"))
    assert main(words) == 0
    assert capsys.readouterr().out.count("1 points, 0 done before") == 2
    assert Path("out/points.csv").read_text() != first


def test_points_are_kept_whole_or_not_at_all(tmp_path: Path) -> None:
    store, (one, two, three) = Store(tmp_path), tasks(3)
    store.save(Outcome(one, {"x": 1.5}, 0.1, "here"))
    assert store.load([one, two]) == {0: {"x": 1.5}}
    (tmp_path / "points" / f"{two.name}.json").write_text('{"metrics": {"x"')
    (tmp_path / "points" / f"{three.name}.json").write_text('{"metrics": [1]}')
    assert store.load([one, two, three]) == {0: {"x": 1.5}}
    assert [path.suffix for path in (tmp_path / "points").iterdir()] == [".json"] * 3


@pytest.mark.slow
def test_a_killed_sweep_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.yaml"
    file.write_text(FILE + "metrics: [least]\n")
    computed: list[str] = []

    class Killed:
        """Computes in this process, and is interrupted after five points."""

        def __init__(self, *_: object) -> None:
            pass

        def run(self, tasks: Sequence[Task], done: Callable[[Outcome], None]) -> None:
            for task in tasks:
                done(run_task(task))
                computed.append(task.name)
                if len(computed) == 5:
                    raise KeyboardInterrupt

    monkeypatch.setattr("mrclab.sweep.executors.LocalProcesses", Killed)
    words = ["sweep", str(file), "--out"]
    assert main([*words, str(tmp_path / "a")]) == 130
    assert len(list((tmp_path / "a" / "points").iterdir())) == 5
    assert main([*words, str(tmp_path / "a")]) == 0
    assert "12 points, 5 done before" in capsys.readouterr().out
    assert len(computed) == len(set(computed)) == 12
    assert main([*words, str(tmp_path / "a")]) == 0
    assert main([*words, str(tmp_path / "b")]) == 0
    assert len(computed) == 24
    a, b = ((tmp_path / name / "table.csv").read_bytes() for name in "ab")
    assert a == b
    assert a.count(b"\n") == 5
    assert (tmp_path / "a" / "least.svg").exists()


@pytest.mark.slow
def test_a_worker_that_dies_loses_one_point_which_is_run_again(tmp_path: Path) -> None:
    found: list[Outcome] = []
    LocalProcesses(2, sweep_points.die_once).run(tasks(8, str(tmp_path)), found.append)
    assert sorted(outcome.task.seed for outcome in found) == list(range(8))
    assert not any(outcome.error for outcome in found)
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_point_that_kills_its_workers_is_given_up_and_no_other_is() -> None:
    found: list[Outcome] = []
    LocalProcesses(2, sweep_points.die_always).run(tasks(6), found.append)
    assert {outcome.task.seed: bool(outcome.error) for outcome in found} == {n: n == 3 for n in range(6)}


KILLED = """
import sys
from mrclab.sweep.executors import LocalProcesses
from mrclab.sweep.task import Task
from tests.support.sweep_points import report_pid_and_wait

if __name__ == "__main__":
    tasks = [
        Task(n, None, None, None, None, None, params={{"pipe": {pipe!r}}}, seed=n, source="")
        for n in (0, 1)
    ]
    LocalProcesses(2, report_pid_and_wait).run(tasks, print)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
def test_workers_end_when_the_sweep_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = tmp_path / "program.py"
    program.write_text(KILLED.format(pipe=str(pipe)))
    sweep = subprocess.Popen([sys.executable, str(program)], env=environment())
    with os.fdopen(os.open(pipe, os.O_RDWR)) as lines:  # read lines of both workers from one pipe
        workers = [os.pidfd_open(int(lines.readline())) for _ in (0, 1)]
    sweep.kill()
    sweep.wait()
    for worker in workers:
        assert select.select([worker], [], [], 60)[0], "a worker outlived the sweep"
        os.close(worker)


LONG = """
name: long
scenario: link-kill
target: sim
topology: tiny
fixed: {faults.0.trials: 100000}
grid: {warmup: [5 ms, 6 ms]}
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="parent-death signals are Linux's")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_runs_and_files_of_a_killed_sweep_are_gone(tmp_path: Path, number: signal.Signals) -> None:
    scratch, file = tmp_path / "scratch", tmp_path / "long.yaml"
    scratch.mkdir()
    file.write_text(LONG)
    words = [
        sys.executable,
        "-m",
        "mrclab",
        "sweep",
        str(file),
        "--workers",
        "1",
        "--out",
        str(tmp_path / "out"),
    ]
    with subprocess.Popen(words, env={**environment(), "TMPDIR": str(scratch)}) as sweep:
        until(lambda: any(scratch.glob("mrclab-sweep-*/out/run.json")))
        sweep.send_signal(number)
    until(lambda: not any(scratch.glob("mrclab-sweep-*")))
    until(lambda: processes_with("TMPDIR", str(scratch)) == [])


def test_a_signal_does_not_stop_the_removal_of_a_runs_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text("{}")
    remove = shutil.rmtree

    def interrupted(folder: str) -> None:
        signal.raise_signal(signal.SIGTERM)
        remove(folder)

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(signals.Ended), signals.as_exceptions():
        sweep_task._remove(str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_point_that_fails_is_told_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "some.yaml"
    file.write_text("name: some\nmodel: fabric\ngrid: {nics: [100, 0]}\n")
    assert main(["sweep", str(file), "--out", str(tmp_path / "out"), "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "at least one NIC" in " ".join(out.split())
    assert "1 of 2 points failed" in out
    assert len(list((tmp_path / "out" / "points").iterdir())) == 1


@pytest.mark.parametrize("model", DEFAULTS)
def test_every_model_gives_numbers_and_the_same_twice(model: str) -> None:
    params = {"nics": 1024, **({"days": 2} if model == "failures" else {})}
    first = run_model(model, params, 3)
    assert first == run_model(model, params, 3)
    assert first


def test_models_take_their_own_parameters_and_those_of_parts() -> None:
    cheap = run_model("fabric", {"parts.switch.cost": 0, "parts.module.cost": 1.0}, 1)
    assert cheap["cost"] == cheap["modules"]
    for params, says in (
        ({"speed": 1}, "has no 'speed'"),
        ({"nics": "many"}, "nics must be like 4096"),
        ({"nics": True, "planes": -1}, "planes must be at least 0"),
        ({"parts.switch.speed": 1}, "has no key 'speed'"),
    ):
        with pytest.raises(InputError, match=says):
            run_model("fabric", params, 1)
    with pytest.raises(InputError, match="traffic must be one of"):
        run_model("shares", {"traffic": "noise"}, 1)


def test_a_worker_with_another_version_refuses() -> None:
    task = replace(task_of(parse_sweep(FILE, "f"), None, Point(0, {"nics": 512}, 1)), source="old")
    assert "another version of mrclab" in run_task(task).error


def test_what_a_run_found_becomes_metrics() -> None:
    summary = {"recovered_us": {"n": 2, "p50": 12.0}, "gap_us": {"n": 0, "p50": None}}
    result = {"valid": True, "transports": {"mrc": {"summary": summary}}}
    assert metrics_of(result) == {"mrc.recovered_us": 12.0, "valid": 1.0}


@pytest.mark.slow
def test_a_run_that_is_refused_is_a_failed_point() -> None:
    sweep = parse_sweep("name: a\nscenario: link-kill\ngrid: {trials: [1]}", "f")
    outcome = run_task(task_of(sweep, None, Point(0, {"no_such_key": 1}, 1)))
    assert "has no key 'no_such_key'" in outcome.error


def test_a_scenarios_mistakes_show_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for text, words, says in (
        ("name: a\nscenario: link-kill\ngrid: {no_such_key: [1]}", (), "has no key 'no_such_key'"),
        ("name: a\nscenario: nowhere\ngrid: {}", (), "no scenario 'nowhere'"),
        ("name: a\nscenario: link-kill\ntarget: tofino\ngrid: {}", (), "target must be one of"),
        (
            "name: a\nscenario: link-kill\ngrid: {}",
            ("--workers", "2"),
            "one fabric runs on a machine",
        ),
        ("name: a\nmodel: shares\ngrid: {}", ("--workers", "0"), "--workers"),
    ):
        (tmp_path / "s.yaml").write_text(text)
        assert main(["sweep", "s.yaml", *words]) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["s.yaml"]


def test_rows_have_mean_least_and_most_of_the_seeds_that_are_there() -> None:
    sweep = parse_sweep(FILE, "f")
    points = points_of(sweep)
    metrics = {0: {"x": 1.0}, 1: {"x": 3.0}, 3: {"x": 5.0}}
    rows = rows_of(sweep, points, metrics)
    assert [(row.seeds, dict(row.spread)) for row in rows[:3]] == [
        (2, {"x": (2.0, 1.0, 3.0)}),
        (1, {"x": (5.0, 5.0, 5.0)}),
        (0, {}),
    ]
    assert table_csv(sweep, rows).splitlines()[1] == "4,0,2,2.0,1.0,3.0"
    assert points_csv(points, metrics).splitlines()[:2] == ["nics,planes,dead_links,seed,x", "1024,4,0,1,1.0"]
    wrong = parse_sweep(FILE + "metrics: [y]\n", "f")
    with pytest.raises(InputError, match="no point has the metric 'y'"):
        rows_of(wrong, points, metrics)


def test_words_on_the_axis_are_drawn_too(tmp_path: Path) -> None:
    sweep = parse_sweep("name: a\nmodel: shares\ngrid: {traffic: [ecmp, permutation], spread: [even]}", "f")
    points = points_of(sweep)
    rows = rows_of(sweep, points, {0: {"x": 1.0}, 1: {"x": 2.0}})
    assert draw(tmp_path, sweep, rows) == ["x"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.png", "x.svg"]
    one = parse_sweep("name: a\nmodel: shares\ngrid: {traffic: [ecmp]}", "f")
    assert draw(tmp_path, one, rows_of(one, points_of(one), {0: {"x": 1.0}})) == []


def test_the_dry_run_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "dead-links", "--dry-run"]) == 0
    assert "200 points" in capsys.readouterr().out


def test_points_name_their_parameters(tmp_path: Path) -> None:
    store, (one,) = Store(tmp_path), tasks(1)
    store.save(Outcome(one, {"x": 1.0}, 0.5, "here"))
    content = json.loads((tmp_path / "points" / f"{one.name}.json").read_text())
    assert content["schema"] == "mrclab.point/1"
    assert content["seed"] == 0
