"""`make bench`: the list of benchmarks is that of the files, and what cannot run ends with one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.__main__ import HERE, SHORT

ROOT = Path(__file__).resolve().parents[1]


def test_every_benchmark_is_in_the_list() -> None:
    assert sorted(SHORT) == sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("__"))


def test_a_wrong_name_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "speed_of_light"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no benchmark speed_of_light" in done.stderr


def test_versions_that_a_clone_lacks_are_named(tmp_path: Path) -> None:
    script = ROOT / "benchmarks/switch_versions.py"
    done = subprocess.run(
        [sys.executable, script, "0badc0de"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
