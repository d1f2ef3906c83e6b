"""Commands check their input before they import modules that take long to import."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HEAVY = (
    "numpy",
    "grpc",
    "finsy",
    "google.protobuf",
    "pyroute2",
    "matplotlib",
    "llvmlite",
    "mininet",
    "jinja2",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    ["cli", "dispatch", "run", "fault", "status", "running", "control", "probe"],
)
def test_reading_the_input_takes_nothing_heavy(module: str) -> None:
    code = f"import mrclab.{module}, sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_scapy_stays_optional() -> None:
    """scapy's license is GPL-2.0-only, so only one module may import it. No module may import that module."""
    users = {
        path.relative_to(ROOT).as_posix()
        for room in ROOT.iterdir()
        if room.name not in ("tests", "build") and not room.name.startswith(".")
        for path in room.rglob("*.py")
        if re.search(
            r"^\s*(from|import) (scapy|mrclab\.hosts\.scapy_layers)\b", path.read_text(), re.MULTILINE
        )
    }
    assert users == {"hosts/scapy_layers.py"}


def test_a_run_loads_no_module_under_a_second_name() -> None:
    """In a checkout, an import without `mrclab.` also works, but loads the module a second time."""
    rooms = {path.name for path in (ROOT / "mrclab").iterdir() if path.is_symlink()}
    code = (
        "import sys; from mrclab.cli import main; "
        "sys.argv[1:] = ['run', 'link-kill', '--target', 'sim', '--topology', 'tiny', '--dry-run']; main(); "
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stderr.split())
    assert "mrclab" in loaded
    assert not loaded & rooms


LIVE_ONLY = {"grpc", "finsy", "google", "llvmlite", "mininet", "pyroute2"}


def test_a_simulated_run_loads_nothing_of_the_testbed(tmp_path: Path) -> None:
    """Virtual time needs no switches, gRPC or Mininet: the base installation does not contain them."""
    words = ["run", "link-kill", "--target", "sim", "--topology", "tiny", "--trials", "1", "--out", "out"]
    code = (
        f"import sys; from mrclab.cli import main; sys.argv[1:] = {words}; main(); "
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.split())
    assert "mrclab.experiments.virtual.engine" in loaded
    assert sorted(name for name in loaded if name.startswith(("mrclab.testbed", "mrclab.switches"))) == []
    assert not {name.partition(".")[0] for name in loaded} & LIVE_ONLY
