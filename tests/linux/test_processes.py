from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mrclab.linux.processes import Process, ancestors, end, environment_value, find, seen_here, start_time

STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); signal.pause()"
)


def test_a_process_that_takes_the_hint_gets_sigterm() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    process = Process.of(child.pid)
    assert process.alive
    assert end([process]) == [process]
    assert not process.alive
    assert child.wait() == -signal.SIGTERM


def test_one_that_does_not_gets_sigkill() -> None:
    child = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.readline()
        end([Process.of(child.pid)], grace_s=0.1)
        assert child.wait() == -signal.SIGKILL


def test_a_later_process_of_the_same_pid_is_spared() -> None:
    child = subprocess.Popen(["sleep", "1000"])
    try:
        start = start_time(child.pid)
        assert start is not None
        assert end([Process(child.pid, start + 1)]) == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare (util-linux)")
def test_one_recorded_in_a_pid_namespace_below_is_found_and_ended() -> None:
    """`mrclab clean` must find the processes of a testbed in a container that has the same /run."""
    code = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    shell = f"{sys.executable} -S -c '{code}' & wait"
    argv = ["unshare", "--pid", "--fork", "--kill-child", "sh", "-c", shell]
    outside = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert outside.stdout is not None
    with outside.stdout:
        inner = int(outside.stdout.readline())
        (shell_pid,) = children(outside.pid)
        (found,) = children(shell_pid)
        recorded = Process(inner, start_time(found) or 0, "what")
        assert end([seen_here(recorded)]) == [Process(found, recorded.start, "what")]
        assert outside.wait() == 0
    assert seen_here(recorded) == recorded


def test_processes_are_found_by_a_variable() -> None:
    value = f"mine.{os.urandom(4).hex()}"
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TEST_RUN": value})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TEST_RUN": "somebody.1"})
    try:
        assert environment_value(other.pid, "TEST_RUN") == "somebody.1"
        assert [process.pid for process in find("TEST_RUN", value.__eq__, ())] == [mine.pid]
    finally:
        for child in (mine, other):
            child.kill()
            child.wait()


def test_the_caller_and_its_ancestors_are_never_found(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ancestors(os.getpid())
    assert {os.getpid(), os.getppid()} <= chain
    code = (
        "from mrclab.linux.processes import find\n"
        "print([p.pid for p in find('TEST_RUN', lambda value: value == 'lab7.1', ())])"
    )
    monkeypatch.setenv("TEST_RUN", "lab7.1")
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
