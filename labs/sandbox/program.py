"""A student's C program, compiled and run in a process without rights (`mrclab.labs.sandbox.c_child`)."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mrclab.labs.sandbox.c_child import COMPILER
from mrclab.labs.sandbox.remote import (
    Output,
    end_child,
    new_scratch,
    printable,
    start_child,
    too_late,
)
from mrclab.linux.errors import MachineError

HEADER = Path("/usr/include/infiniband/verbs.h")
_LONGEST_LINE_BYTES = 1 << 16
_CPU_S = 60


class CompileError(Exception):
    """The program cannot be compiled. The text has the compiler's messages."""


class ProgramEnd(Exception):  # noqa: N818
    """The program has ended, or was ended because its time was over. The text says how."""


class Program:
    """A program that is compiled from files. The caller reads its standard output and writes to its input."""

    def __init__(
        self,
        sources: Mapping[str, bytes],
        limit_s: float,
        report: Callable[[str], None] = lambda missing: None,
        runs: int = 1,
    ) -> None:
        """Compile the program and start it ``runs`` times, one after the other.

        All runs together may take ``limit_s`` seconds. ``report`` is called with the rights that could not
        be removed. Raise CompileError, or MachineError if there is no compiler here.
        """
        if shutil.which(COMPILER) is None or not HEADER.exists():
            raise MachineError(
                "no C compiler or no header of libibverbs here", "apt install gcc libibverbs-dev"
            )
        self._scratch, folder, stage = new_scratch()
        folder.mkdir()
        for name, content in sources.items():
            (folder / name).write_bytes(content)
        self._process = start_child("c_child", folder, stage, str(_CPU_S), str(runs))
        assert self._process.stderr is not None
        self._output = Output(self._process.stderr)
        self._late = False
        self._limit_s = limit_s
        self._watchdog = threading.Timer(limit_s, self._end_late)
        self._watchdog.daemon = True
        self._watchdog.start()
        try:
            self._begin(report)
        except BaseException:
            self.close()
            raise

    def _begin(self, report: Callable[[str], None]) -> None:
        missing = self._json().get("missing")
        if missing:
            report(printable(str(missing)))
        compiled = self._json()
        if not compiled.get("compiled"):
            raise CompileError(printable(str(compiled.get("messages")), lines=True).strip())

    def _json(self) -> dict[str, Any]:
        found = json.loads(self.line())
        assert isinstance(found, dict)
        return found

    def line(self) -> str:
        """Return the next line that the program writes. Raise ProgramEnd if there is none."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline(_LONGEST_LINE_BYTES)
        if self._late:
            raise ProgramEnd(too_late(self._limit_s))
        if not line.endswith(b"\n"):
            raise ProgramEnd("Your program ended before it was done.")
        text = line.decode(errors="replace").rstrip("\n")
        if text.startswith("X -"):
            raise ProgramEnd(f"Your program was ended by signal {text[3:]}: does it write where it may not?")
        if text.startswith("X "):
            raise ProgramEnd("Your program ended before it was done. Does it call exit()?")
        return text

    def end(self) -> None:
        """Wait for the end of a run. Raise ProgramEnd unless its exit code is 0."""
        assert self._process.stdout is not None
        if self._process.stdout.readline(_LONGEST_LINE_BYTES) != b"X 0\n":
            raise ProgramEnd("Your program did not end after its last answer.")

    def read(self, count: int) -> bytes:
        """Return ``count`` bytes that the program writes. Raise ProgramEnd if there are fewer."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) != count:
            raise ProgramEnd("Your program ended before it was done.")
        return data

    def write(self, text: str) -> None:
        """Write an answer to the program's standard input. Raise ProgramEnd if the program has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(text.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            self.line()
            raise ProgramEnd("Your program ended before it was done.") from None

    def _end_late(self) -> None:
        self._late = True
        self._process.kill()

    def close(self) -> None:
        """End the program and remove its files."""
        self._watchdog.cancel()
        end_child(self._process)
        self._output.end()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
