"""Run a lab's checks, or the parts of its score, in a process that can be ended after a time limit.

A lab with a score has a ``score.py``, written like ``check.py`` (`mrclab.labs.checks`). Each part returns its
results by name, such as ``{"us": 585.2, "lost": 0}``. A lower result is better. Students are ranked by the
sum of the first result over all parts. If two sums are equal, the sums of the next result decide.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from mrclab.labs.catalogue import Lab, Outcome, all_labs, folder_of
from mrclab.linux.errors import InputError, MrclabError

_START_LIMIT_S = 60.0
_GRACE_S = 5.0
"""The extra time for the worker, in s. The worker ends the student's process first and reports the reason."""


def judge(
    check: Path, folder: Path, limit_s: float, *, quiet: bool = False, number: str | None = None
) -> Iterator[Outcome]:
    """Run the checks of a file on a student's folder. Yield each outcome as soon as the check ends.

    A check that takes longer than ``limit_s`` has failed; the later checks still run. With ``quiet`` the
    output of the student's code is dropped. The variant is drawn from ``number``. Without ``number``, it is
    drawn from the student's number in the folder. Raise MrclabError if the checks themselves cannot be run.
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
    """A worker process and its output lines. A thread reads them, so that reading can have a timeout."""

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
                **dict.fromkeys(("TMPDIR", "TEMP", "TMP"), scratch),  # this folder is removed at the end
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
        """Return the next line, or "" at the end.

        Raise TimeoutError after ``limit_s``. Every call after this error returns "".
        """
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
        """Return True if more lines may come."""
        return not self._ended

    def end(self) -> None:
        """End the worker."""
        self._worker.kill()
        self._worker.wait()


SCORE_FILE = "score.py"


@dataclass(frozen=True)
class Score:
    """A student's score in a lab: the sum of each measured value over all parts of ``score.py``."""

    sums: tuple[tuple[str, float], ...]

    @property
    def values(self) -> tuple[float, ...]:
        """The sums. A smaller tuple is a better score."""
        return tuple(value for _, value in self.sums)

    def __str__(self) -> str:
        return ", ".join(f"{value:,.0f} {name}" for name, value in self.sums)


def score_file(lab: Lab) -> Path | None:
    """Return the path of a lab's ``score.py``, or None if the lab has no score."""
    path = folder_of(lab) / SCORE_FILE
    return path if path.is_file() else None


def require_score(lab: Lab) -> Path:
    """Return the path of a lab's ``score.py``. Raise InputError if the lab has no score."""
    path = score_file(lab)
    if path is None:
        with_scores = ", ".join(str(one.number) for one in all_labs() if score_file(one))
        raise InputError(f"lab {lab.number} has no score: choose one of {with_scores}")
    return path


def score_parts(lab: Lab, folder: Path, *, quiet: bool = False) -> Iterator[Outcome]:
    """Yield each part of a student's score when it is done. Raise InputError if the lab has no score."""
    return judge(require_score(lab), folder, lab.spec.check_limit_s, quiet=quiet)


def score_of(parts: Sequence[Outcome]) -> Score | None:
    """Return the score of all parts. Return None if a part has failed or has no measured value."""
    if not parts or not all(part.passed and part.measured for part in parts):
        return None
    names = tuple(parts[0].measured)
    return Score(tuple((name, sum(part.measured[name] for part in parts)) for name in names))


def ranks(scores: Sequence[Score | None]) -> list[int | None]:
    """Return the rank of each score, 1 for the best. Equal scores have equal ranks; None has no rank."""
    values = [score.values for score in scores if score is not None]
    return [None if score is None else 1 + sum(other < score.values for other in values) for score in scores]


def score_table(parts: Sequence[Outcome]) -> str:
    """Return the parts and their sums as a text table. A part without a result shows its hint."""
    names = next((tuple(part.measured) for part in parts if part.measured), ())
    width = max((len(part.check) for part in parts), default=0)
    lines = [f"{'':{width}}" + "".join(f"  {name:>8}" for name in names)]
    for part in parts:
        if part.measured:
            cells = "".join(f"  {part.measured[name]:8,.0f}" for name in names)
        else:
            cells = f"  no result: {part.hint}"
        lines.append(f"{part.check:{width}}{cells}")
    score = score_of(parts)
    if score is not None:
        lines.append(f"{'sum':{width}}" + "".join(f"  {value:8,.0f}" for value in score.values))
    return "\n".join(lines)
