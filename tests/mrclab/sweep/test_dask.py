"""A sweep over a Dask scheduler and three worker processes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.linux.errors import MachineError
from mrclab.sweep.executors import DaskCluster, LocalProcesses
from mrclab.sweep.spec import parse_sweep, points_of
from mrclab.sweep.table import rows_of, table_csv
from mrclab.sweep.task import Outcome, Store, task_of
from tests.support.paths import ROOT

distributed = pytest.importorskip("distributed")

FILE = """
name: two-hundred
model: shares
fixed: {nics: 1024}
grid:
  planes: [4, 8]
  dead_links: [0, 10, 50, 100, 200]
seeds: 20
"""


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
        # Without this, Dask would warn when a busy machine delays its event loop.
        "DASK_DISTRIBUTED__ADMIN__TICK__LIMIT": "1h",
    }
    command = [sys.executable, "-m", "distributed.cli." + words[0], *words[1:]]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            yield running
        finally:
            running.kill()


def table(path: Path) -> str:
    sweep = parse_sweep(FILE, "f")
    points = points_of(sweep)
    tasks = [task_of(sweep, None, point) for point in points]
    metrics = Store(path).load(tasks)
    assert len(metrics) == 200
    return table_csv(sweep, rows_of(sweep, points, metrics))


@pytest.mark.slow
def test_three_workers_of_which_one_is_killed_give_the_table_of_one_worker(tmp_path: Path) -> None:
    sweep = parse_sweep(FILE, "f")
    tasks = [task_of(sweep, None, point) for point in points_of(sweep)]
    alone = Store(tmp_path / "alone")
    LocalProcesses(1).run(tasks, alone.save)

    shared = Store(tmp_path / "shared")
    hosts: list[str] = []
    file = tmp_path / "scheduler.json"
    with ExitStack() as stack:
        scheduler = ("dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        stack.enter_context(process(*scheduler, "--scheduler-file", str(file)))
        quiet = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")
        workers = [
            stack.enter_context(
                process(
                    "dask_worker", "--scheduler-file", str(file), "--local-directory", str(tmp_path), *quiet
                )
            )
            for _ in range(3)
        ]
        waiting = distributed.Client(scheduler_file=str(file), timeout=60)
        waiting.wait_for_workers(3, timeout=60)
        waiting.close()

        def done(outcome: Outcome) -> None:
            assert not outcome.error
            shared.save(outcome)
            hosts.append(outcome.host)
            if len(hosts) == 80:
                os.kill(workers[0].pid, signal.SIGKILL)

        DaskCluster(str(file)).run(tasks, done)
        assert workers[0].wait() == -signal.SIGKILL
        assert all(worker.poll() is None for worker in workers[1:])
    assert len(hosts) == 200
    assert table(tmp_path / "shared") == table(tmp_path / "alone")


def test_no_scheduler_is_one_line_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mrclab.sweep.executors.CONNECT_S", 0.1)
    with pytest.raises(MachineError, match="no Dask scheduler answers at tcp"):
        DaskCluster("tcp://127.0.0.1:9")
    file = tmp_path / "f.yaml"
    file.write_text(FILE)
    words = ["sweep", str(file), "--out", str(tmp_path / "out"), "--scheduler", "tcp://127.0.0.1:9"]
    assert main(words) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_without_dask_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MachineError, match="Dask is not installed: pip install 'mrclab"):
        DaskCluster("tcp://127.0.0.1:9")
