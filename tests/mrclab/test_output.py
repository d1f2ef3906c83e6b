"""The output of a run: the command that repeats it, and the messages about its progress."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from mrclab.cli import main, parser
from mrclab.experiments.report.build import Run, save_run
from mrclab.linux.errors import InputError
from mrclab.output import bytes_text, directory, held, progress, repeat
from mrclab.p4src.targets import target_name
from mrclab.run_scenario import scenario_of
from tests.support.paths import ROOT

SCENARIO = """\
name: mine
topology: four.yaml
workload: {kind: stream, duration: 1 s}
"""
TOPOLOGY = "name: four\nplanes: 1\nt0: 2\nt1: 2\nhosts: 4\n"


def again(*words: str) -> list[str]:
    args = parser().parse_args(["run", *words])
    return repeat(args, args.scenario, scenario_of(args, args.scenario))


def test_do_it_again_names_files_in_full_and_the_target_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "mine.yaml").write_text(SCENARIO)
    (tmp_path / "here" / "four.yaml").write_text(TOPOLOGY)
    monkeypatch.chdir(tmp_path / "here")
    words = again("mine.yaml", "--trials", "2", "--set", "workload.rate=5 Mbit/s")
    monkeypatch.chdir(tmp_path)
    assert words[:3] == ["mrclab", "run", str(tmp_path / "here" / "mine.yaml")]
    assert words[words.index("--target") + 1] == target_name("auto") != "auto"
    assert words[words.index("--topology") + 1] == str(tmp_path / "here" / "four.yaml")
    assert again(*words[2:]) == words, "from another directory it means the same"


def test_a_shipped_scenario_is_named_as_it_was_asked_for() -> None:
    target = target_name("auto")
    assert again("link-kill") == ["mrclab", "run", "link-kill", "--target", target, "--seed", "1"]
    words = again("link-kill", "--topology", "tiny", "--seed", "7", "--no-pcap")
    assert words[2:] == ["link-kill", "--target", target, "--topology", "tiny", "--seed", "7"]


def test_where_nothing_can_be_drawn_progress_is_told_in_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mrclab.output.LINE_EVERY_S", 0.001)
    file = io.StringIO()
    with progress(Console(file=file, width=80), "trials", 20) as (say, step):
        say("mrc: MRC")
        step(3)
        while "3 of 20 trials" not in file.getvalue():
            step(3)
        step(20)
    lines = file.getvalue().splitlines()
    assert "mrc: MRC" in lines
    assert lines[-1].startswith("  20 of 20 trials, ")


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 bytes"), (999, "999 bytes"), (1500, "1.5 kB"), (290_400_000, "290 MB")]
)
def test_amounts_of_data_in_words(count: int, text: str) -> None:
    assert bytes_text(count) == text


STRANGE = "[bold red]x[/red] [/x] :cat: ☃"


def strange_run(folder: Path) -> list[str]:
    """Write a scenario with brackets in its description. Return the arguments of mrclab that run it."""
    workload = "{kind: stream, duration: 2 ms, rate: 10 Mbit/s}"
    scenario = f"name: mine\ndescription: '{STRANGE}'\ntopology: tiny\nrepetitions: 1\nworkload: {workload}\n"
    (folder / "mine.yaml").write_text(scenario, encoding="utf-8")
    return ["run", "mine.yaml", "--target", "sim", "--out", STRANGE]


def test_what_users_write_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Brackets are markup of rich, but in a user's text they must be printed unchanged."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr("mrclab.experiments.report.write.draw_all", lambda *_: None)
    words = strange_run(tmp_path)
    assert main(words) == 0, capsys.readouterr().err
    said = capsys.readouterr().out
    assert f": {STRANGE}\n" in said
    assert f"results: {STRANGE} (" in said
    assert main(["report", STRANGE]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.splitlines() == [f"{STRANGE}/report.html", f"{STRANGE}/trials.csv"]


@pytest.mark.slow
def test_a_terminal_without_unicode_ends_no_run(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mrclab", *strange_run(tmp_path)],
        cwd=tmp_path,
        env={**os.environ, "LC_ALL": "C", "LANG": "C", "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert r"\u2603" in done.stdout
    assert (tmp_path / STRANGE / "report.html").exists()


def test_only_one_console_is_made() -> None:
    """Other consoles would interpret markup in a user's text."""
    made = [
        path.relative_to(ROOT).as_posix()
        for room in ("mrclab", "experiments", "exercises", "labs", "testbed", "controller", "hosts")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"\bConsole\(|\brich import print\b|\bfrom_markup\b", path.read_text(encoding="utf-8"))
    ]
    assert made == ["mrclab/terminal.py"]


def test_two_runs_that_begin_in_the_same_second_have_a_directory_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mrclab.output.datetime", SameSecond)
    with directory(None, "link-kill") as first, directory(None, "link-kill") as second:
        assert (str(first), str(second)) == ("results/link-kill/now", "results/link-kill/now-2")


class SameSecond:
    """A clock that stands still."""

    now = staticmethod(lambda: SameSecond())

    def strftime(self, _form: str) -> str:
        return "now"


def test_a_directory_has_one_run_at_a_time(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with (
        directory(str(out), "link-kill"),
        pytest.raises(InputError, match="another run writes to"),
        directory(str(out), "link-kill"),
    ):
        pass
    assert out.is_dir(), "the second run, which was refused, does not remove the directory of the first"


def test_a_run_that_still_runs_is_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["run", "link-kill", "--target", "sim", "--trials", "1", "--out", str(tmp_path / "out")]

    def stopped(out: Path, described: Run) -> None:
        save_run(out, described)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("mrclab.experiments.report.build.save_run", stopped)
        assert main(words) == 130
    capsys.readouterr()
    with held(tmp_path / "out"):
        assert main(["run", "--resume", str(tmp_path / "out")]) == 2
    assert "another run writes to" in capsys.readouterr().err
