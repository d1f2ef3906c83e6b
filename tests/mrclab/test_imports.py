"""What a command imports before it knows that its input is good: nothing that takes long."""

import re
import subprocess
import sys

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
    ["cli", "run", "run_figures", "soak", "fault", "status", "running", "control", "probe"],
)
def test_reading_the_input_takes_nothing_heavy(module: str) -> None:
    code = f"import mrclab.{module}, sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_scapy_stays_optional() -> None:
    """Its license is GPL-2.0-only: one module uses it, and no other uses that one."""
    users = {
        path.relative_to(ROOT).as_posix()
        for room in ROOT.iterdir()
        if room.name not in ("tests", "build") and not room.name.startswith(".")
        for path in room.rglob("*.py")
        if re.search(r"^\s*(from|import) (scapy|hosts\.scapy_layers)\b", path.read_text(), re.MULTILINE)
    }
    assert users == {"hosts/scapy_layers.py"}
