"""A command that runs after a process has ended, whatever ended the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.linux.processes import Process, environment

WATCH = [sys.executable, "-S", "-m", "mrclab.linux.life.after_death"]


def watch(process: Process, file: Path) -> subprocess.Popen[bytes]:
    """Start a watch that creates a file when the process has ended."""
    touch = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", str(file)]
    return subprocess.Popen([*WATCH, str(process.pid), str(process.start), *touch], env=environment())


@pytest.mark.slow
@pytest.mark.parametrize("end", ["kill", "terminate"])
def test_the_command_runs_after_the_end_and_not_before(tmp_path: Path, end: str) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as watched:
        try:
            watcher = watch(Process.of(watched.pid), tmp_path / "made")
            with pytest.raises(subprocess.TimeoutExpired):
                watcher.wait(0.5)
        finally:
            getattr(watched, end)()
    assert watcher.wait(30) == 0
    assert (tmp_path / "made").exists()


def test_another_process_of_the_same_pid_is_not_waited_for(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other:
        try:
            now = Process.of(other.pid)
            assert watch(Process(now.pid, now.start - 1), tmp_path / "made").wait(30) == 0
        finally:
            other.kill()


def test_sigterm_ends_the_watch_without_the_command(tmp_path: Path) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as watched:
        try:
            watcher = watch(Process.of(watched.pid), tmp_path / "made")
            watcher.terminate()
            assert watcher.wait(30) != 0
        finally:
            watched.kill()
    assert not (tmp_path / "made").exists()
