"""A simulated run with an installed wheel, outside the checkout and without root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from mrclab.experiments.result.file import load_result
from tests.support.paths import ROOT
from tests.support.privilege import AS_NOBODY

BUILD = [
    Requirement(text)
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
]
NOT_PACKAGED = shutil.ignore_patterns(".*", "tests", "docs", "results", "build", "*.egg-info", "__pycache__")


def install(place: Path) -> Path:
    """Build the wheel from a copy of the source, and install only the wheel. Return the folder."""
    source, built, installed = place / "source", place / "built", place / "installed"
    shutil.copytree(ROOT, source, symlinks=True, ignore=NOT_PACKAGED)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", built, source], check=True
    )
    (wheel,) = built.glob("mrclab-*.whl")
    assert wheel.name.endswith("-none-any.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", installed, wheel], check=True)
    return installed


def test_what_builds_the_wheel_has_no_known_hole() -> None:
    """setuptools before 78.1.1 may write outside its target folder: CVE-2025-47273."""
    (setuptools,) = BUILD
    assert setuptools.name == "setuptools"
    assert not setuptools.specifier.contains("78.1.0")


@pytest.mark.slow
@pytest.mark.skipif(
    not all(found.specifier.contains(version(found.name)) for found in BUILD),
    reason=f"the wheel is built by {', '.join(map(str, BUILD))}",
)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_wheel_runs_link_kill_outside_the_checkout_as_nobody(tmp_path: Path) -> None:
    installed = install(tmp_path)
    shutil.rmtree(tmp_path / "source")
    home = tmp_path / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.is_relative_to(tmp_path.parents[1]):
            folder.chmod(0o755)
    program = (
        "import os, sys, mrclab; assert os.geteuid() == 65534; "
        f"assert mrclab.__file__.startswith({str(installed)!r}), mrclab.__file__; "
        "from mrclab.cli import main; sys.exit(main())"
    )
    words = ["run", "link-kill", "--target", "sim", "--trials", "1", "--out", "out"]
    done = subprocess.run(
        [*AS_NOBODY, sys.executable, "-c", program, *words],
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = load_result(home / "out")
    assert (result["target"], result["topology"], result["integrity"]) == ("sim", "paper-c", "ok")
