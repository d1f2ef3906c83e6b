"""A run that ends before its first measurement leaves no files. If it ends later, its files are kept."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mrclab.cli import main
from mrclab.experiments.live import engine
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.scenario import load_scenario
from mrclab.linux.errors import InputError, MachineError
from mrclab.linux.life.signals import Ended
from mrclab.run_scenario import run_and_report


def run(monkeypatch: pytest.MonkeyPatch, out: Path, *, began: bool, error: BaseException) -> None:
    """Run a scenario whose engine raises an error before or during the measurement."""

    def fails(_: object, out: Path, outcome: Outcome, **_shown: Any) -> None:
        outcome.began = began
        (out / "mrc-0").mkdir()
        (out / "mrc-0" / "captured").touch()
        raise error

    monkeypatch.setattr(engine, "run_scenario", fails)
    out.mkdir()
    scenario = load_scenario("link-kill", topology="tiny", target="ebpf")
    with pytest.raises(type(error)):
        run_and_report(scenario, out, Console(file=io.StringIO()), ["mrclab", "run", "link-kill"])


REFUSALS = [InputError("a damaged capture"), MachineError("no memory")]


@pytest.mark.parametrize("error", REFUSALS)
def test_evidence_is_kept_once_measuring_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """If a capture is damaged, the files of the run must stay."""
    run(monkeypatch, tmp_path / "out", began=True, error=error)
    assert (tmp_path / "out" / "mrc-0" / "captured").exists()


@pytest.mark.parametrize("error", REFUSALS)
def test_nothing_is_left_of_a_run_that_could_not_begin(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    run(monkeypatch, tmp_path / "out", began=False, error=error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("there", [False, True])
def test_an_error_of_ours_leaves_no_empty_directory(
    there: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the output directory existed before the run, it stays."""

    def fails(_: Path) -> None:
        raise RuntimeError("a mistake")

    monkeypatch.setattr("mrclab.experiments.live.system.describe_system", fails)
    out = tmp_path / "results" / "mine"
    if there:
        out.mkdir(parents=True)
    assert main(["run", "link-kill", "--target", "sim", "--out", str(out)]) == 1
    assert "a mistake" in capsys.readouterr().err
    assert list(tmp_path.rglob("*")) == ([out.parent, out] if there else [])


def test_a_run_that_was_ended_before_it_measured_keeps_its_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run(monkeypatch, tmp_path / "out", began=False, error=Ended(15))
    assert (tmp_path / "out" / "run.json").exists()
    assert not (tmp_path / "out" / "result.json").exists()


TOPOLOGY = """\
name: mine
planes: 2
t0: 2
t1: 2
hosts: 4
links: {host: {rate: 10 Gbit/s}, fabric: {rate: 10 Gbit/s}}
"""
SCENARIO = """\
name: mini
topology: ./mine.yaml
target: sim
transports: [mrc]
workload: {kind: permutation, duration: 100 us}
warmup: 50 us
repetitions: 2
"""


def test_a_run_is_not_continued_on_another_fabric_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topology's file may have changed since the run was killed."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("mine.yaml", TOPOLOGY), ("mini.yaml", SCENARIO)):
        Path(name).write_text(text)
    assert main(["run", "mini.yaml", "--out", "out"]) == 0
    Path("out/result.json").unlink()
    shutil.rmtree("out/mrc-1")
    Path("mine.yaml").write_text(TOPOLOGY.replace("10 Gbit/s", "1 Gbit/s"))
    capsys.readouterr()
    assert main(["run", "--resume", "out"]) == 2
    assert "its scenario means something else today" in capsys.readouterr().err
    Path("mine.yaml").write_text(f"# the same fabric\n{TOPOLOGY}")
    assert main(["run", "--resume", "out"]) == 0
