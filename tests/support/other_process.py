"""Run Python in another process, with additional environment variables."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.paths import ROOT


def output_of(*args: str, **env: str) -> str:
    """Return what Python prints with these arguments and additional environment variables."""
    return subprocess.run(
        [sys.executable, *args],
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
