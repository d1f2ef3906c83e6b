"""If a signal arrives during the imports, mrclab prints one line and ends, as at later times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

FROM_THE_IMPORT = """
import runpy, signal, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "mrclab.cli":
            signal.raise_signal({number})
sys.meta_path.insert(0, Finder())
sys.argv = ["mrclab", "--version"]
runpy.run_module("mrclab", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("number", "code", "said"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "ended by SIGTERM"),
        (signal.SIGHUP, 129, "ended by SIGHUP"),
    ],
)
def test_a_signal_during_the_imports_ends_it_in_a_line(number: signal.Signals, code: int, said: str) -> None:
    program = FROM_THE_IMPORT.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, f"mrclab: {said}\n")


AT_THE_END = """
import atexit, runpy, signal, sys
atexit.register(signal.raise_signal, signal.SIGINT)
sys.argv = ["mrclab", "{argument}"]
runpy.run_module("mrclab", run_name="__main__")
"""


@pytest.mark.parametrize(("argument", "code"), [("--version", 0), ("--nonsense", 2)])
def test_ctrl_c_after_the_work_changes_nothing(argument: str, code: int) -> None:
    program = AT_THE_END.format(argument=argument)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "KeyboardInterrupt" not in done.stderr


URGENT = """
import os, runpy, sys
{limit}
sys.argv = ["mrclab", "{command}", "--help"]
try:
    runpy.run_module("mrclab", run_name="__main__")
except SystemExit as end:
    print(os.getpriority(os.PRIO_PROCESS, 0), end.code)
"""
REFUSED = "def refuse(*_): raise PermissionError\nos.setpriority = refuse"
ALLOWED = "os.setpriority = lambda *which: print(*which)"


@pytest.mark.parametrize(
    ("command", "limit", "said"),
    [
        ("fault", ALLOWED, "0 0 -20\n"),
        ("restore", ALLOWED, "0 0 -20\n"),
        ("status", ALLOWED, ""),
        ("fault", REFUSED, ""),
    ],
)
def test_a_command_of_a_moment_goes_before_programs_that_poll(command: str, limit: str, said: str) -> None:
    program = URGENT.format(command=command, limit=limit)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{said}usage: mrclab {command}")
    assert done.stdout.endswith(f"{os.getpriority(os.PRIO_PROCESS, 0)} 0\n")
