"""The simulator, compared with theory in situations whose result is a formula (docs/validation.md)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path

import pytest

from benchmarks.kit.closed_forms import FORMS, Point
from benchmarks.kit.shares_and_packets import shares_points
from mrclab.simulator.port import DATA, UNLIMITED, Bucket, Packet
from tests.simulator.test_port import NS, Line, packet

ROOT = Path(__file__).resolve().parents[2]
FRAME = 1000
"""The size of a frame in bytes, which is also its time on a link in ns."""
LONG = {"spraying at a part of the load", "recovery from a silent cut", "permutation over full links"}


@pytest.mark.parametrize(
    "form",
    [pytest.param(form, id=name, marks=[pytest.mark.slow] * (name in LONG)) for name, form in FORMS],
)
def test_a_situation_ends_as_its_formula_says(form: Callable[[], Iterator[Point]]) -> None:
    assert [point for point in form() if not point.holds] == []


@pytest.mark.slow
def test_shares_of_a_permutation_with_dead_links_are_those_of_packets() -> None:
    assert [point for point in shares_points() if not point.holds] == []


def test_a_point_beyond_its_bound_does_not_hold() -> None:
    assert not Point("", 2.0, 2.3, 0.1).holds
    assert Point("", 2.0, 2.1, 0.1).holds
    assert not Point("", 0.5, 0.52, 0.01, share=True).holds


def validation(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "benchmarks/validation.py", "--only-speed", "--hosts", "4", "--pairs", "1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def htsim(folder: Path, text: str) -> str:
    """Write a fake htsim, which reads the traffic matrix and prints a result as htsim does."""
    binary = folder / "htsim_uec"
    binary.write_text(f"#!{sys.executable}\nimport sys\n{text}\n")
    binary.chmod(0o755)
    return str(binary)


def test_the_comparison_has_a_row_with_both(tmp_path: Path) -> None:
    text = """
for line in open(sys.argv[sys.argv.index("-tm") + 1]):
    if "->" in line:
        print("Flow Uec finished at", 26.5 if "size 1000000" in line else 3.5, "total messages 1")
"""
    done = validation("--htsim", htsim(tmp_path, text))
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("     4")]
    assert [row[0] for row in rows] == ["4", "4"], done.stderr
    assert "26.5" in rows[0]
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--htsim", "/nowhere/htsim_uec"], "no such file"),
        (["--hosts", "60"], "not a square"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(words: list[str], error: str) -> None:
    done = validation(*words)
    assert done.returncode == 2
    assert error in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_htsim_that_does_not_end_its_flows_is_refused_in_one_line(tmp_path: Path) -> None:
    done = validation("--htsim", htsim(tmp_path, "print('unknown option')\nsys.exit(1)"))
    assert done.returncode == 2
    assert "0 of 4 flows ended, exit code 1: unknown option" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.5])
def test_a_lossy_link_loses_its_share(ratio: float) -> None:
    frames = 5000
    line = Line()
    line.port.set_loss(ratio)
    for number in range(frames):
        line.put_at(number * FRAME, packet(FRAME))
    arrived = len(line.run())
    assert arrived + line.port.lost == frames
    assert arrived / frames == pytest.approx(1 - ratio, abs=5 * sqrt(ratio * (1 - ratio) / frames))


def test_a_full_link_carries_its_rate_and_the_queue_grows_by_the_rest() -> None:
    """n frames arrive at twice the link's rate. The last frame waits for n/2 serialisation times."""
    frames = 200
    line = Line()
    for number in range(frames):
        line.put_at(number * FRAME // 2, packet(FRAME))
    seen = line.run()
    assert seen[-1][0] == frames * FRAME
    assert line.port.longest_wait_ps == (frames - 1) * FRAME * NS // 2


def test_a_bucket_lets_its_burst_through_and_then_keeps_the_rate() -> None:
    burst, frames = 5 * FRAME, 50
    line = Line(UNLIMITED, bucket=Bucket(burst))
    sent: list[Packet] = [line.put_at(0, packet(FRAME, DATA)) for _ in range(frames)]
    seen = line.run()
    assert len(seen) == len(sent)
    assert [at for at, _ in seen] == [max(0, (n + 1) * FRAME - burst) for n in range(frames)]
