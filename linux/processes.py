"""Find and end the processes of a testbed, and run child processes in a network namespace.

Each child process has a separate session.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mrclab.linux.errors import BadInputError, MachineError, SwitchError
from mrclab.linux.namespaces import NETNS_DIR, Identity

GRACE_S = 2.0
EXEC_TRIES = 20
KTHREADD = 2
MOST_CHARACTERS = 100  # the longest command line that is kept


@dataclass(frozen=True, slots=True)
class Process:
    """A process: pid and start time (clock ticks since boot). A later process may get the same pid."""

    pid: int
    start: int
    what: str = ""

    @classmethod
    def of(cls, pid: int, what: str = "") -> Process:
        """Return the running process of that pid. Raise ProcessLookupError if there is none."""
        start = start_time(pid)
        if start is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, start, what)

    @property
    def alive(self) -> bool:
        """True while the process runs. A zombie, which has ended but was not waited for, does not run."""
        fields = _stat(self.pid)
        return fields is not None and int(fields[19]) == self.start and fields[0] not in ("Z", "X")


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name of the program may contain spaces and brackets


def start_time(pid: int) -> int | None:
    """Return the start of a process in clock ticks since boot, or None if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields is not None else None


def seen_here(recorded: Process) -> Process:
    """Return a process with its pid in this pid namespace. Its record may have the pid of another namespace.

    Several pid namespaces may share the directory of the record, and a process has a different pid in each
    pid namespace. If the process is not found, return it unchanged.
    """
    if recorded.alive:
        return recorded
    for entry in os.listdir("/proc"):
        if entry.isdigit() and start_time(int(entry)) == recorded.start:
            with suppress(OSError):
                status = Path(f"/proc/{entry}/status").read_text(errors="replace")
                (pids,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
                if pids[-1] == str(recorded.pid):
                    return Process(int(entry), recorded.start, recorded.what)
    return recorded


def ancestors(pid: int) -> set[int]:
    """Return the pids of a process, its parent, the parent's parent, and so on."""
    found = set()
    while pid > 0 and pid not in found:
        found.add(pid)
        fields = _stat(pid)
        pid = int(fields[1]) if fields is not None else 0
    return found


def environment_value(pid: int, variable: str) -> str | None:
    """Return the value that an environment variable had when a process was started, or None."""
    key = f"{variable}=".encode()
    for entry in _environ(pid).split(b"\0"):
        if entry.startswith(key):
            return entry[len(key) :].decode(errors="replace")
    return None


def _environ(pid: int) -> bytes:
    """Return a process's environment. If it looks empty, as during an exec, read it again."""
    with suppress(OSError):
        for _ in range(EXEC_TRIES):
            if data := Path(f"/proc/{pid}/environ").read_bytes():
                return data
            fields = _stat(pid)
            if fields is None or KTHREADD in (pid, int(fields[1])):
                break  # the process has ended, or it is a kernel thread, which has no environment
            os.sched_yield()
    return b""


def find(variable: str, belongs: Callable[[str], bool], spaces: Iterable[Identity]) -> Iterator[Process]:
    """Return the processes of a testbed, found by an environment variable or by their network namespace.

    A process is returned if it was started with a value of ``variable`` that ``belongs`` accepts, or if it
    runs in one of ``spaces``. The calling process, its ancestors, and processes in another pid namespace,
    such as those of a container, are never returned.
    """
    inside = set(spaces)
    spared = ancestors(os.getpid())
    here = os.stat("/proc/self/ns/pid")
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in spared:
            continue
        pid = int(entry)
        try:
            start = start_time(pid)
            net, pids = os.stat(f"/proc/{pid}/ns/net"), os.stat(f"/proc/{pid}/ns/pid")
        except OSError:
            continue  # the process has ended or is a zombie, which has no namespace
        if start is None or (pids.st_dev, pids.st_ino) != (here.st_dev, here.st_ino):
            continue
        value = environment_value(pid, variable)
        if (value is not None and belongs(value)) or Identity(net.st_dev, net.st_ino) in inside:
            yield Process(pid, start, _command(pid))


def _command(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        return " ".join(words).strip()[:MOST_CHARACTERS]
    return ""


def end(processes: Iterable[Process], grace_s: float = GRACE_S) -> list[Process]:
    """End processes with SIGTERM, and with SIGKILL after ``grace_s`` seconds. Wait until all have ended.

    Return the processes that were running. The caller must wait for its children, which are zombies.
    """
    waiting: dict[int, Process] = {}
    try:
        for process in processes:
            try:
                fd = os.pidfd_open(process.pid)
            except OSError:
                continue
            if process.alive:  # the open descriptor ensures that the pid is not reused
                waiting[fd] = process
            else:
                os.close(fd)
        found = list(waiting.values())
        for number, timeout_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            for fd in waiting:
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
            _await(waiting, timeout_s)
        return found
    finally:
        for fd in waiting:
            os.close(fd)


def _await(waiting: dict[int, Process], timeout_s: float) -> None:
    """Wait at most ``timeout_s`` for all processes to end. Close the descriptors of ended processes."""
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    for fd in waiting:
        poller.register(fd, select.POLLIN)
    while waiting:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        for fd, _ in poller.poll(left * 1000):
            poller.unregister(fd)
            os.close(fd)
            del waiting[fd]


def inside(netns: str | None, command: Sequence[str]) -> list[str]:
    """Return a command that runs in a named network namespace and keeps its pid.

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
    """Return a command that runs one of mrclab's modules with this interpreter."""
    return [sys.executable, "-m", module, *args]


def environment() -> dict[str, str]:
    """Return this process's environment, with mrclab added to PYTHONPATH, for a child process."""
    env = dict(os.environ)
    root = str(Path(__file__).parents[2])
    env["PYTHONPATH"] = os.pathsep.join(p for p in (root, env.get("PYTHONPATH", "")) if p)
    return env


def ending(code: int) -> str:
    """Describe how a process with that exit code ended, such as "ended with exit code 1"."""
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
        """Return True while the process runs."""
        return self._child.poll() is None

    def read_line(self, timeout: float) -> str | None:
        """Return the next line of standard output, None at the end. Raise SwitchError after `timeout` s."""
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
        """Return the last line of the child's log that is not of level INFO."""
        with self.log.open("rb") as log:
            log.seek(self._log_begin)
            lines = log.read().decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if " INFO " not in line), "it said nothing")

    def why_ended(self, timeout: float = 5.0) -> str:
        """Describe how the process ended (`ending`). Add its last output unless a signal ended it."""
        code = self.exit_code(timeout)
        return ending(code) if code < 0 else f"{ending(code)} ({self.last_words()}; see {self.log})"

    def exit_code(self, timeout: float) -> int:
        """Wait until the process has ended and return its exit code."""
        return self._child.wait(timeout)

    def stop(self, timeout: float = 5.0) -> None:
        """End the process with SIGTERM, and with SIGKILL if it still runs after ``timeout`` seconds."""
        if self.alive():
            self._child.terminate()
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._child.wait()
        if self._child.stdout is not None:
            self._child.stdout.close()


def first_to_end(pids: Sequence[int], timeout: float) -> int | None:
    """Wait until one of these child processes ends and return its pid, or None after `timeout` seconds."""
    with ExitStack() as held:
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
            with suppress(ProcessLookupError):
                os.kill(p.pid, signal.SIGTERM)
    for p in running:
        p.stop()
