"""Call a student's code, which runs in a process without rights (`mrclab.labs.sandbox.child`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from mrclab.labs.sandbox.files import copy_folder

_LARGEST_ANSWER_BYTES = 8_000_000
_MOST_OUTPUT_BYTES = 100_000
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "MRCLAB_PURE")
_ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_ENDED = "Your code ended the program. Did you call exit()?"


class StudentError(Exception):
    """An error in a student's code. The text names the place."""


class Gone(BaseException):
    """The student's process has ended, or its answers cannot be used.

    This is no Exception, so that hypothesis does not catch it when it searches for a failing example.
    """


def new_scratch() -> tuple[tempfile.TemporaryDirectory[str], Path, Path]:
    """Return a new directory and two paths in it: for the student's files, and for `confine`'s ``stage``."""
    scratch = tempfile.TemporaryDirectory(prefix="mrclab-lab-", ignore_cleanup_errors=True)
    above = Path(scratch.name).resolve()
    above.chmod(0o755)
    folder, stage = above / "lab", above / "stage"
    stage.mkdir()
    return scratch, folder, stage


def start_child(module: str, *words: str | Path) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process with pipes and only a few environment variables."""
    above = Path(__file__).parents[3]
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-P", "-m", f"mrclab.labs.sandbox.{module}", *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=above,
        env={**environment, **dict.fromkeys(_ONE_THREAD, "1"), "PYTHONPATH": str(above)},
        start_new_session=True,
    )


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that `start_child` started, and close its input and output."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:
            continue


def too_late(limit_s: float) -> str:
    """Return the hint for code that did not end in time."""
    return f"This did not end within {limit_s:g} s. Is there a loop that never ends?"


class RemoteCode:
    """A process with a student's files. A call starts the process if it does not run.

    ``report`` is called once, with the reason, if the process has more rights than it should have.
    """

    def __init__(self, folder: Path, report: Callable[[str], None] = lambda missing: None) -> None:
        self._folder = folder
        self._report = report
        self._process: subprocess.Popen[bytes] | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._watchdog: threading.Timer | None = None
        self._late = self._gone = self._reported = False
        self._number = 0
        self._waiting: list[dict[str, Any]] = []
        self.generation = 0
        """The number of processes started so far. Objects of an earlier process no longer exist."""

    def begin(self, limit_s: float) -> None:
        """Begin a check. The student's code has ``limit_s`` seconds for the whole check."""
        self.end_check()
        self._late = self._gone = False
        self._limit_s = limit_s
        self._watchdog = threading.Timer(limit_s, self._end_late)
        self._watchdog.daemon = True
        self._watchdog.start()

    def end_check(self) -> None:
        """End a check, and stop its timer."""
        self._waiting.clear()
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def function(self, file: str, name: str, args: Sequence[Any], *, arrays: bool = False) -> Any:
        """Call a function of a file; return its value as plain data.

        Raise StudentError if the student's code fails, or Gone if the process gives no usable answer.
        """
        return self._ask({"do": "function", "file": file, "name": name, "args": list(args), "arrays": arrays})

    def value(self, file: str, name: str) -> Any:
        """Return the value of ``name`` in a file, as plain data."""
        return self._ask({"do": "value", "file": file, "name": name})

    def make(self, file: str, name: str, adapter: str, args: Sequence[Any]) -> RemoteObject:
        """Make an object of a class of a file. Return a proxy for it."""
        made = self._ask({"do": "make", "file": file, "name": name, "adapter": adapter, "args": list(args)})
        if not isinstance(made, list) or len(made) != 2 or not isinstance(made[1], list):
            raise Gone(_ENDED)
        return RemoteObject(self, made[0], tuple(map(str, made[1])))

    def later(self, step: dict[str, Any]) -> None:
        """Send this step together with the next step whose value is needed."""
        self._waiting.append(step)

    def _ask(self, step: dict[str, Any]) -> Any:
        if self._gone:
            raise Gone(self._why())
        process = self._started()
        self._number += 1
        steps = [*self._waiting, step]
        self._waiting.clear()
        request = json.dumps({"number": self._number, "steps": steps}).encode() + b"\n"
        assert process.stdin is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            answer = self._answer(process, self._number)
        except (BrokenPipeError, Gone) as error:
            self._end()
            self._gone = True
            raise Gone(self._why(error)) from None
        if "error" in answer:
            raise StudentError(printable(str(answer["error"])))
        return answer.get("value")

    def ask(self, step: dict[str, Any]) -> Any:
        """Carry out a step in the student's process and return its value."""
        return self._ask(step)

    def _why(self, error: BaseException | None = None) -> str:
        if self._late:
            return too_late(self._limit_s)
        return str(error) if isinstance(error, Gone) else _ENDED

    def _answer(self, process: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline(_LARGEST_ANSWER_BYTES)
        if not line:
            raise Gone(_ENDED)
        if not line.endswith(b"\n"):
            raise Gone("Your code returned more than can be looked at.")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or found.get("number") != number:
            raise Gone(
                "Your code wrote where the checks read its answers: leave files alone that it did not open."
            )
        return found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._scratch, folder, stage = new_scratch()
        copy_folder(self._folder, folder)
        self._process = start_child("child", folder, stage, "600")
        self.generation += 1
        self._number = 0
        assert self._process.stderr is not None
        self._output = Output(self._process.stderr)
        missing = self._answer(self._process, 0).get("value")
        if missing and not self._reported:
            self._reported = True
            self._report(printable(str(missing)))
        return self._process

    def _end_late(self) -> None:
        self._late = True
        process = self._process
        if process is not None:
            process.kill()

    def _end(self) -> None:
        if self._process is not None:
            end_child(self._process)
            self._output.end()
            self._process = None
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None

    def close(self) -> None:
        """End the process and remove its files."""
        self.end_check()
        self._end()


class RemoteObject:
    """An object in the student's process."""

    def __init__(self, code: RemoteCode, number: int, methods: tuple[str, ...]) -> None:
        self._code = code
        self._number = number
        self._generation = code.generation
        self.methods = methods
        """The optional methods that the object has."""

    def call(self, name: str, *args: Any) -> Any:
        """Call a method; return its value as plain data. Raise errors as `RemoteCode.function` does."""
        return self._code.ask(self._step(name, args))

    def later(self, name: str, *args: Any) -> None:
        """Call a method that returns nothing. The call is sent with the next call that returns a value."""
        self._code.later(self._step(name, args))

    def _step(self, name: str, args: Sequence[Any]) -> dict[str, Any]:
        if self._generation != self._code.generation:
            raise Gone(_ENDED)
        return {"do": "method", "object": self._number, "name": name, "args": list(args)}


class Output:
    """Copies the output of a student's code to standard error. Output beyond a limit is read and dropped."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        left = _MOST_OUTPUT_BYTES
        while chunk := os.read(self._pipe.fileno(), 1 << 16):
            if left > 0:
                sys.stderr.write(printable(chunk[:left].decode(errors="replace"), lines=True))
                left -= len(chunk)
                if left <= 0:
                    sys.stderr.write("\n(it prints more, which is left out)\n")
                sys.stderr.flush()

    def end(self) -> None:
        """Wait at most 1 s for the end of the output, because another process may keep the pipe open."""
        self._thread.join(1)


def printable(text: str, *, lines: bool = False) -> str:
    """Return a text without control characters. With ``lines``, line ends and tabs stay."""
    return "".join(c if c.isprintable() or (lines and c in "\n\t") else " " for c in text)
