"""The backend of torch.distributed on a real fabric, with the PyTorch of the system's Python."""

from __future__ import annotations

import os
import site
import subprocess
from subprocess import PIPE

import pytest

from tests.support.command import Up
from tests.support.paths import ROOT

PYTHON = "/usr/bin/python3"
PROGRAMS = ROOT / "tests" / "support" / "programs"
TIMEOUT_S = 240
RANKS = 4


def _torch_is_there() -> bool:
    return not subprocess.run(
        [PYTHON, "-c", "import torch.distributed"], capture_output=True, check=False
    ).returncode


pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        os.geteuid() != 0 or not ("CI" in os.environ or _torch_is_there()),
        reason="needs PyTorch in the system's Python (apt install --no-install-recommends python3-torch)",
    ),
]


def _everywhere(up: Up, program: str, *words: str) -> list[str]:
    packages = site.getsitepackages()[0]
    script = (PYTHON, str(PROGRAMS / "with_packages.py"), packages, str(PROGRAMS / program), *words)
    return up.mrclab.command("exec", "--all", "--", *script)


def test_all_collectives_and_messages(tiny: Up) -> None:
    argv = _everywhere(tiny, "torch_collectives.py")
    done = subprocess.run(
        argv, env=tiny.mrclab.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "all right" in line) == [
        f"rank {rank} of mrclab: all right" for rank in range(RANKS)
    ]


def test_a_plane_that_dies_in_a_training_changes_no_bit(tiny: Up) -> None:
    """The parameters also equal the parameters of a training by a single process."""
    argv = _everywhere(tiny, "torch_training.py", "24", "pause")
    with subprocess.Popen(
        argv, env=tiny.mrclab.environment, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "half\n"
            tiny.mrclab.ok("fault", "plane-death", "p1")
            output, errors = process.communicate("go\n", timeout=TIMEOUT_S)
        finally:
            process.kill()
            tiny.mrclab("restore", "--all")
    assert process.returncode == 0, errors
    together, alone = output.splitlines()
    assert together.split()[0] == "together"
    assert together.split()[1] == alone.split()[1]
