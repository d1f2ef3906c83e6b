"""A run's command that does the same again, and what is told of its progress."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from mrclab.cli import parser
from mrclab.output import bytes_text, progress, repeat
from mrclab.run_scenario import scenario_of
from switches.target import target_name

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
