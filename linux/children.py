"""Child processes in a network namespace and a separate session: start, watch, end."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

from mrclab.linux.errors import BadInputError, MachineError, SwitchError
from mrclab.linux.namespaces import NETNS_DIR


def inside(netns: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs in a named network namespace; the process keeps its pid.

    Raise BadInputError if there is no such namespace, MachineError if there is no nsenter.
    """
    if netns is None:
        return list(command)
    path = NETNS_DIR / netns
    if not path.exists():
        raise BadInputError(f"no network namespace {netns} ({path})")
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise MachineError("nsenter is not installed: it comes with util-linux")
    return [nsenter, f"--net={path}", *command]


def python(module: str, *args: str) -> list[str]:
    """Return a command that runs one of our modules with this interpreter."""
    return [sys.executable, "-m", module, *args]


def environment() -> dict[str, str]:
    """Return the environment of a child: ours, and where our packages are."""
    env = dict(os.environ)
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH", "")) if p)
    return env


def ending(code: int) -> str:
    """Return how a process of that exit code ended, as the end of a sentence."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"


class Child:
    """A child process in a separate session, with its output in a log file."""

    def __init__(self, command: Sequence[str], log: Path, *, pipe_stdout: bool = False) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as sink:
            self._log_begin = sink.tell()
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipe_stdout else sink,
                stderr=sink,
                env=environment(),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    def alive(self) -> bool:
        """Return true while it runs."""
        return self._child.poll() is None

    def read_line(self, timeout: float) -> str | None:
        """Return the next line of its standard output; None at its end. Raise SwitchError after `timeout`."""
        stream: IO[bytes] | None = self._child.stdout
        assert stream is not None
        line = bytearray()
        deadline = time.monotonic() + timeout
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise SwitchError(f"process {self.pid} is not ready after {timeout:g} s, see {self.log}")
            part = os.read(stream.fileno(), 1)
            if not part:
                return None
            line += part
        return line.decode().rstrip("\n")

    def last_words(self) -> str:
        """Return the last line of its log, except those of level INFO."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if " INFO " not in line), "it said nothing")

    def why_ended(self, timeout: float = 5.0) -> str:
        """Return how it ended, as the end of a sentence; with its last output unless a signal ended it."""
        code = self.exit_code(timeout)
        return ending(code) if code < 0 else f"{ending(code)} ({self.last_words()}; see {self.log})"

    def exit_code(self, timeout: float) -> int:
        """Wait for its end and return its exit code."""
        return self._child.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """End it: SIGTERM, and SIGKILL when that does not help in time."""
        if self.alive():
            self._child.terminate()
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


def first_to_end(pids: Sequence[int], timeout: float) -> int | None:
    """Wait until one of our children ends, and return which; None after `timeout` seconds."""
    with contextlib.ExitStack() as held:
        watch = select.poll()
        by_fd = {}
        for pid in pids:
            fd = os.pidfd_open(pid)
            held.callback(os.close, fd)
            by_fd[fd] = pid
            watch.register(fd, select.POLLIN)
        events = watch.poll(timeout * 1000)
        return by_fd[events[0][0]] if events else None


def stop_all(processes: Iterable[Child]) -> None:
    """End several processes at the same time."""
    running = list(processes)
    for p in running:
        if p.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGTERM)
    for p in running:
        p.stop()
