"""cppcheck finds nothing in the C libraries."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from mrclab.hosts.service.shared_memory import header
from mrclab.native.build import SOURCE

CHECKS = "warning,performance,portability"


@pytest.mark.skipif(
    shutil.which("cppcheck") is None and not os.environ.get("CI"),
    reason="needs cppcheck (apt install cppcheck)",
)
def test_cppcheck_finds_nothing(tmp_path: Path) -> None:
    (tmp_path / "layout.h").write_text(header())
    options = [f"--enable={CHECKS}", "--std=c11", "--quiet", "--inline-suppr", "--error-exitcode=1"]
    defines = ["-DEXPORT=", "-D__ELF_NATIVE_CLASS=64"]
    argv = ["cppcheck", *options, *defines, f"-I{tmp_path}", f"-I{SOURCE}", *sorted(SOURCE.glob("*.c"))]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
