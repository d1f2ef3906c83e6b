"""The space that results take, and their removal. Only results that the user names are removed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mrclab.cli import main
from mrclab.output import held
from mrclab.prune import find_runs


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write three runs of one scenario and one run of another. The first run was killed."""
    monkeypatch.chdir(tmp_path)
    for age, name in enumerate(("fig05/1", "link-kill/3", "link-kill/2", "link-kill/1")):
        run = tmp_path / "results" / name
        (run / "mrc-0" / "captures").mkdir(parents=True)
        (run / "mrc-0" / "captures" / "h0.pcap").write_bytes(bytes(5_000_000))
        (run / "mrc-0" / "faults.json").write_bytes(bytes(1000))
        told = run / ("run.json" if name.endswith("/3") else "result.json")
        told.write_text("{}")
        os.utime(told, (10**9 - age, 10**9 - age))
    (tmp_path / "results" / "notes.txt").write_text("mine")
    return tmp_path / "results"


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_without_an_option_it_lists_and_removes_nothing(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(results)
    assert main(["prune"]) == 0
    said = capsys.readouterr().out
    assert "4 runs, 20 MB; freed 0 bytes" in said
    assert said.index("link-kill/1") < said.index("link-kill/3") < said.index("fig05/1")
    assert files(results) == before


def test_captures_go_and_all_else_stays(results: Path) -> None:
    before = files(results)
    assert main(["prune", "--captures"]) == 0
    assert files(results) == [name for name in before if not name.endswith(".pcap")]


def test_the_newest_of_each_scenario_stay(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prune", "--keep", "1", "--dry-run"]) == 0
    assert "would free 10 MB" in capsys.readouterr().out
    assert len(find_runs(results)) == 4
    assert main(["prune", "--keep", "1"]) == 0
    left = [str(run.directory.relative_to(results)) for run in find_runs(results)]
    assert left == ["link-kill/3", "fig05/1"]
    assert (results / "notes.txt").exists()


def test_other_scenarios_in_a_folder_are_no_older_runs(tmp_path: Path) -> None:
    names = ("figures/1/fig04", "figures/1/fig05", "figures/2/fig04", "figures/2/fig05", "fig04-a", "fig05-a")
    for age, name in enumerate(names):
        run = tmp_path / name
        run.mkdir(parents=True)
        told = run / "run.json"
        told.write_text(json.dumps({"scenario": "fig04" if "fig04" in name else "fig05"}))
        os.utime(told, (10**9 + age, 10**9 + age))
    assert main(["prune", str(tmp_path), "--keep", "1"]) == 0
    left = [str(run.directory.relative_to(tmp_path)) for run in find_runs(tmp_path)]
    assert left == ["figures/2/fig04", "figures/2/fig05", "fig04-a", "fig05-a"]


def test_a_run_that_still_runs_keeps_everything(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(results)
    with held(results / "link-kill" / "1"), held(results / "fig05"):
        assert main(["prune", "--captures", "--keep", "0"]) == 0
    assert "freed 10 MB" in capsys.readouterr().out
    kept = ("link-kill/1/", "fig05/", "notes.txt")
    assert files(results) == [name for name in before if name.startswith(kept)]


@pytest.mark.parametrize("words", [["none"], ["--keep", "-1"], ["results/notes.txt"]])
def test_what_cannot_be_pruned_is_refused(
    results: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(results)
    assert main(["prune", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert files(results) == before


def test_a_full_disk_is_said_in_one_line(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(root: Path) -> None:
        raise OSError(28, "No space left on device", "out/result.json")

    monkeypatch.setattr("mrclab.prune.find_runs", full)
    assert main(["prune"]) == 1
    said = capsys.readouterr().err
    assert (
        said
        == "mrclab: the disk is full (writing out/result.json): make room (mrclab prune), and try again\n"
    )


def test_an_interrupt_that_a_library_turns_into_an_error_is_one(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """NumPy raises such an error if it is interrupted while it writes a file."""

    def interrupted(root: Path) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise ValueError("Can't close the ZIP file")

    monkeypatch.setattr("mrclab.prune.find_runs", interrupted)
    assert main(["prune"]) == 130
    assert capsys.readouterr().err == "mrclab: interrupted\n"
