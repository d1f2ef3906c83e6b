"""Output of a run: its result directory, its progress, and the size of its files."""

from __future__ import annotations

import argparse
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.shipped import SCENARIOS
from mrclab.linux.errors import InputError, MachineError
from mrclab.p4src.targets import target_name
from mrclab.topologies.shipped import TOPOLOGIES, Shipped

Say = Callable[[str], None]
Step = Callable[[int], None]
Detail = Callable[[float], str]
LEAST_ROOM_BYTES = 50_000_000
"""The free disk space that a run needs to start. Its captures may need more."""
LINE_EVERY_S = 10.0
"""The time between two progress lines if the output is no terminal."""


@contextmanager
def directory(out_option: str | None, scenario: str) -> Iterator[Path]:
    """Create the run's directory, hold it (`held`) and yield it. Raise InputError if it is not empty.

    Without ``out_option``, the name is the present time. If another run has this name, a number is added. If
    an error ends the ``with``, new folders that are still empty are removed.
    """
    default = Path("results") / scenario / datetime.now().strftime("%Y%m%d-%H%M%S")
    wanted = Path(out_option) if out_option else default
    made = [folder for folder in wanted.parents if not folder.exists()]
    try:
        out, is_new = _make(wanted, share=bool(out_option))
        with held(out):
            made = [out, *made] if is_new else made
            _require_empty(out)
            yield out
    except BaseException:
        for folder in made:
            with suppress(OSError):  # the folder is not empty, or does not exist any more
                folder.rmdir()
        raise


def _make(wanted: Path, *, share: bool) -> tuple[Path, bool]:
    """Make a directory. Return its path, and False if it was there, which only ``share`` allows."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            out = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            try:
                out.mkdir()
                break
            except OSError:
                if not out.is_dir():
                    raise
                if share:
                    return out, False
    except OSError as error:
        raise InputError(f"--out: cannot use '{wanted}': {error.strerror}") from None
    return out, True


def _require_empty(out: Path) -> None:
    try:
        empty = not any(out.iterdir())
    except OSError as error:
        raise InputError(f"--out: cannot use '{out}': {error.strerror}") from None
    if not empty:
        raise InputError(f"--out: '{out}' is not empty: give a new directory")


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Hold a run's directory in the ``with``, so that no other mrclab writes a run there or removes it.

    Raise InputError if another process holds it. A hold ends with its process. It has no effect on a system
    or a file system without locks.
    """
    try:
        import fcntl  # exists on Unix only
    except ImportError:
        yield
        return
    try:
        fd = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot use '{out}': {error.strerror}") from None
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another run writes to '{out}': wait until it has ended") from None
        except OSError:
            pass
        yield
    finally:
        os.close(fd)


def is_held(out: Path) -> bool:
    """Return True if a run of another process holds a directory, or this is not known."""
    try:
        with held(out):
            return False
    except InputError:
        return True


def room_for(out: Path) -> None:
    """Raise MachineError if the disk has less than `LEAST_ROOM_BYTES` free."""
    free = shutil.disk_usage(out).free
    if free < LEAST_ROOM_BYTES:
        raise MachineError(
            f"the disk of '{out}' has {bytes_text(free)} left",
            "make room: mrclab prune, or --out DIR elsewhere",
        )


def size_of(directory: Path) -> int:
    """Return the total size, in bytes, of all files below a directory."""
    return sum(
        (Path(folder) / name).lstat().st_size for folder, _, names in os.walk(directory) for name in names
    )


def size_text(directory: Path) -> str:
    """Return the size of all files below a directory as text with a unit."""
    return bytes_text(size_of(directory))


def bytes_text(count: int) -> str:
    """Return an amount of data as text with a unit, such as ``290 MB``."""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.{1 if count < 10 * size else 0}f} {unit}"
    return f"{count} bytes"


def repeat(args: argparse.Namespace, name: str, scenario: Scenario) -> list[str]:
    """Return a command that runs the scenario again in the same way, from any directory.

    Files have absolute paths. The target has its real name, because `auto` may choose another target on
    another machine.
    """
    words = ["mrclab", "run", _whole(SCENARIOS, name), "--target", target_name(scenario.target)]
    topology = scenario.topology if isinstance(scenario.topology, str) else None
    if topology is not None and (args.topology is not None or topology not in TOPOLOGIES.names()):
        words += ["--topology", _whole(TOPOLOGIES, topology)]
    if getattr(args, "trials", None) is not None:
        words += ["--trials", str(args.trials)]
    if getattr(args, "program", None) is not None:
        words += ["--program", str(Path(args.program).resolve())]
    words += ["--seed", str(scenario.seed)]
    settings = [*args.set]
    if getattr(args, "duration", None) is not None:
        settings.append(f"workload.duration={args.duration}")
    return words + [word for setting in settings for word in ("--set", setting)]


def _whole(shipped: Shipped, name: str) -> str:
    """Return the name of a shipped file unchanged, or the absolute path of another file."""
    return name if name in shipped.names() else str(Path(name).resolve())


@contextmanager
def progress(
    console: Console, what: str, total: int, detail: Detail = lambda _seconds: ""
) -> Iterator[tuple[Say, Step]]:
    """Show the progress. Yield two functions: print a line, and set the number of finished parts.

    A terminal shows a bar. To a file or a pipe, write a line every ten seconds and at the end. ``detail``
    takes the seconds since the start and returns a text about the present part of the work.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(what, total=total)
            started, over = time.monotonic(), threading.Event()

            def describe() -> None:
                while not over.wait(1.0):
                    words = detail(time.monotonic() - started)
                    bar.update(task, description=f"{what}, {words}" if words else what)

            describing = threading.Thread(target=describe, daemon=True)
            describing.start()
            try:
                yield bar.console.print, lambda done: bar.update(task, completed=done)
            finally:
                over.set()
                describing.join()
        return
    with _Lines(console, what, total, detail) as lines:
        yield lines.say, lines.step


class _Lines:
    """Progress as lines for a file or a pipe. Each line is flushed, so that a reader sees it immediately."""

    def __init__(self, console: Console, what: str, total: int, detail: Detail) -> None:
        self._console = console
        self._detail = detail
        self._what = what
        self._total = total
        self._done = 0
        self._started = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._tell, daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._line()

    def say(self, text: str) -> None:
        self._console.print(text)
        self._console.file.flush()

    def step(self, done: int) -> None:
        self._done = done

    def _tell(self) -> None:
        while not self._over.wait(LINE_EVERY_S):
            self._line()

    def _line(self) -> None:
        seconds = time.monotonic() - self._started
        phase = ", reading what was captured" if self._done == self._total and not self._over.is_set() else ""
        words = "" if self._over.is_set() else self._detail(seconds)
        self.say(
            f"  {self._done} of {self._total} {self._what}{phase}, {seconds:.0f} s{words and f'; {words}'}"
        )
