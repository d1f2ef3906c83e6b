from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from testbed.names import Names
from testbed.processes import Process, ancestors, end, ours, run_id_of, start_time

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


def test_processes_are_known_by_their_run(names: Names) -> None:
    mine = subprocess.Popen(["sleep", "1000"], env={**os.environ, "MRCLAB_RUN": names.new_run_id()})
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "MRCLAB_RUN": "somebody.1"})
    try:
        assert run_id_of(other.pid) == "somebody.1"
        assert [process.pid for process in ours(names, ())] == [mine.pid]
    finally:
        for child in (mine, other):
            child.kill()
            child.wait()


def test_we_and_our_ancestors_are_never_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = ancestors(os.getpid())
    assert {os.getpid(), os.getppid()} <= chain
    code = (
        "import os\nfrom testbed.names import Names\nfrom testbed.processes import ours\n"
        "print([p.pid for p in ours(Names('lab7'), ())])"
    )
    monkeypatch.setenv("MRCLAB_RUN", "lab7.1")
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
