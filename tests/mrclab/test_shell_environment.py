"""Only one process makes the Python environment of p4runtime-shell. Other processes wait for it."""

import subprocess
import threading
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mrclab import shell_environment
from mrclab.shell_environment import CACHE_VARIABLE, ShellEnvironmentError, shell_python


def test_who_wants_it_while_another_makes_it_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, go_on, made = threading.Event(), threading.Event(), []

    def create(directory: Path, **_: object) -> None:
        made.append(directory)
        directory.mkdir()
        begun.set()
        go_on.wait(60)

    def installed(*_: Any, **__: Any) -> "subprocess.CompletedProcess[str]":
        return subprocess.CompletedProcess([], 0, "", "")

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(shell_environment.subprocess, "run", installed)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(shell_python)
        assert begun.wait(60)
        second = pool.submit(shell_python)
        go_on.set()
        assert first.result(60) == second.result(60)
    assert len(made) == 1


def test_a_place_that_cannot_be_written_to_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(ShellEnvironmentError, match=r"cannot write to .*file: "):
        shell_python()
