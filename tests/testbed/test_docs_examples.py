"""The Python example of docs/faults.md runs as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.names import PREFIX_VARIABLE, Names
from tests.support.paths import ROOT


@pytest.mark.root
def test_the_example_of_faults_runs(names: Names, tmp_path: Path) -> None:
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.S)
    # A process of its own: gRPC's threads stay in the namespace of their first user.
    environment = {**os.environ, PREFIX_VARIABLE: names.prefix, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", example]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ \d+ switch\n", done.stdout)
