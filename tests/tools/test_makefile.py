"""The actions of `make` before anything is installed."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.privilege import AS_NOBODY


@pytest.mark.root
@pytest.mark.parallel
@pytest.mark.parametrize("target", ["run-experiment", "live", "bench", "clean"])
def test_who_is_not_root_hears_so_before_anything_is_installed(target: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [*AS_NOBODY, "make", target], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode != 0
    assert f"not root: run 'sudo make {target}'" in done.stderr
    assert "installing" not in done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["Makefile"]


@pytest.mark.parametrize(
    ("words", "refused"), [("--topology tiny", True), ("--run a", False), ("--run=a", False)]
)
def test_a_page_of_a_run_that_others_made_needs_no_root(words: str, refused: bool) -> None:
    plan = subprocess.run(
        ["make", "--dry-run", "live", f"ARGS={words}"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert ("not root" in plan.stdout) == refused
    assert f"mrclab live {words}" in plan.stdout


@pytest.mark.parametrize(("given", "used"), [("", ".venv"), ("/image/.venv", "/image/.venv")])
def test_the_environment_is_the_checkouts_or_the_one_that_is_named(given: str, used: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", "unit-test"],
        cwd=ROOT,
        env={**os.environ, "MRCLAB_VENV": given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f" {used}/bin/python -m pytest" in done.stdout


@pytest.mark.parametrize(
    ("scenario", "words", "installed"),
    [
        ("link-kill", "", set()),
        ("training", "", {"training", "frr"}),
        ("training", "--quick", {"training", "quick"}),
        ("training", "--seed 3 --quick", {"training", "quick"}),
    ],
)
def test_only_what_a_run_needs_is_installed(
    scenario: str, words: str, installed: set[str], tmp_path: Path
) -> None:
    """One call of tools/setup.sh installs everything for a run.

    The quick training needs no routers and no compiler.
    """
    done = subprocess.run(
        ["make", "--dry-run", "run-experiment", f"SCENARIO={scenario}", f"ARGS={words}"],
        cwd=ROOT,
        env={**os.environ, "MRCLAB_VENV": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    calls = [
        line.split("tools/setup.sh ")[-1].split() for line in done.stdout.splitlines() if "|| tools/" in line
    ]
    asked = [set(extras) for place, *extras in calls if place == str(tmp_path)]
    assert asked[0] == installed
    assert ("hosts.compile" in done.stdout) == ("quick" not in installed)
    assert all(extras in (installed, set()) for extras in asked)
