"""What a command imports before it knows that its input is good: nothing that takes long."""

import subprocess
import sys

import pytest

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


@pytest.mark.parametrize(
    "module",
    ["cli", "run", "run_comparison", "run_figures", "soak", "fault", "status", "running", "control", "probe"],
)
def test_reading_the_input_takes_nothing_heavy(module: str) -> None:
    code = f"import mrclab.{module}, sys; print(*(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
