"""If a signal arrives during the imports, mrclab prints one line and ends, as at later times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

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


CLOSED = """
import os, runpy, sys
from contextlib import suppress
import mrclab.cli
sys.argv = ["mrclab", "--version"]
with suppress(SystemExit):
    runpy.run_module("mrclab", run_name="__main__")
streams = [os.readlink(f"/proc/self/fd/{n}") for n in range(3) if os.path.exists(f"/proc/self/fd/{n}")]
open("streams.txt", "w").write(" ".join(streams))
"""


def test_closed_standard_streams_are_empty_ones(tmp_path: Path) -> None:
    """A pipe with the number of a closed stream would be lost to the child process that needs it."""
    command = 'exec "$0" -c "$1" <&- >&- 2>&-'
    subprocess.run(["sh", "-c", command, sys.executable, CLOSED], cwd=tmp_path, check=False)
    assert (tmp_path / "streams.txt").read_text().split() == ["/dev/null"] * 3


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
