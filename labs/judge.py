"""Run a lab's checks on a folder, in a process that is ended if it takes too long."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from mrclab.labs.model import Outcome
from mrclab.linux.errors import MrclabError

_START_LIMIT_S = 60.0
_GRACE_S = 5.0
"""The student's process is ended first, so that the hint is about it."""


def judge(
    check: Path, folder: Path, limit_s: float, *, quiet: bool = False, number: str | None = None
) -> Iterator[Outcome]:
    """Yield the outcome of each check of a file on a folder, as soon as the check ends.

    A check that takes longer than ``limit_s`` has failed; those after it are run all the same. ``quiet``
    drops the output of the student's code. ``number`` draws the variant instead of the folder's number.
    Raise MrclabError if the checks themselves cannot be run.
    """
    with tempfile.TemporaryDirectory(prefix="mrclab-lab-", ignore_cleanup_errors=True) as scratch:
        Path(scratch).chmod(0o755)
        last = [] if number is None else [number]
        yield from _judged(check.resolve(), folder.resolve(), limit_s, last, scratch, quiet)


def _judged(
    check: Path, folder: Path, limit_s: float, last: Sequence[str], scratch: str, quiet: bool
) -> Iterator[Outcome]:
    done: list[Outcome] = []
    titles: Sequence[str] = ()
    while not titles or len(done) < len(titles):
        lines = _Lines([check, folder, len(done), limit_s, *last], scratch, quiet)
        try:
            titles = json.loads(lines.next(_START_LIMIT_S + limit_s) or "{}").get("titles", ())
            if not titles:
                raise MrclabError(f"the checks in {check} cannot be run")
            while len(done) < len(titles):
                try:
                    line = lines.next(limit_s + _GRACE_S)
                except TimeoutError:
                    hint = f"This did not end within {limit_s:g} s. Is there a loop that never ends?"
                    outcome = Outcome(titles[len(done)], False, hint)
                else:
                    outcome = _outcome(line, titles[len(done)])
                done.append(outcome)
                yield outcome
                if outcome.tried and not outcome.passed and not lines.alive():
                    break
        finally:
            lines.end()


def _outcome(line: str, title: str) -> Outcome:
    if not line:
        return Outcome(title, False, "The check ended before it was done: is one of your files very large?")
    return Outcome(**json.loads(line))


class _Lines:
    """A worker and the lines that it writes, read in a thread: pipes have no timeout on every system."""

    def __init__(self, words: Sequence[object], scratch: str, quiet: bool) -> None:
        here = str(Path(__file__).parents[2])
        path = os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
        self._worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "mrclab.labs.worker", *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if quiet else None,
            env={
                **os.environ,
                "PYTHONPATH": path,
                "PYTHONDONTWRITEBYTECODE": "1",
                **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch),  # the files left by a killed worker
            },
            text=True,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        assert self._worker.stdout is not None
        threading.Thread(target=self._read, args=[self._worker.stdout], daemon=True).start()
        self._ended = False

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put("")

    def next(self, limit_s: float) -> str:
        """Return the next line, "" at the end. Raise TimeoutError, after which there is none."""
        if self._ended:
            return ""
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._ended = True
            raise TimeoutError from None
        self._ended = not line
        return line

    def alive(self) -> bool:
        """Return true while more lines may come."""
        return not self._ended

    def end(self) -> None:
        """End the worker."""
        self._worker.kill()
        self._worker.wait()
