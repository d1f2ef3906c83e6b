"""A run's directory of results, its progress, and the command that repeats it."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from linux.errors import InputError, MachineError
from testbed.running import Say

Step = Callable[[int], None]


def directory(out_option: str | None, scenario: str) -> Path:
    """Return the run's directory. Raise InputError if it holds another run."""
    default = Path("results") / scenario / datetime.now().strftime("%Y%m%d-%H%M%S")
    out = Path(out_option) if out_option else default
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise InputError(f"--out: '{out}' is not empty: give a new directory")
    except OSError as error:
        raise InputError(f"--out: cannot use '{out}': {error.strerror}") from None
    return out


@contextmanager
def removed_if_refused(out: Path) -> Iterator[None]:
    """Remove the directory if the ``with`` body finds that nothing can be measured."""
    try:
        yield
    except (InputError, MachineError):
        shutil.rmtree(out)
        raise


@contextmanager
def progress(console: Console, what: str, total: int) -> Iterator[tuple[Say, Step]]:
    """Show a progress bar; yield a function that prints above it, and one that takes how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield bar.console.print, lambda done: bar.update(task, completed=done)


def repeat(args: argparse.Namespace, scenario: str) -> list[str]:
    """Return the command that runs a scenario again as it was run."""
    return ["mrclab", "run", *asked_for(args, scenario, ("target", "topology", "trials", "seed", "duration"))]


def asked_for(args: argparse.Namespace, name: str, options: Sequence[str]) -> list[str]:
    """Return the words that reproduce a run: ``name``, the given ``options``, every ``--set``."""
    words = [name]
    for option in options:
        if getattr(args, option, None) is not None:
            words += [f"--{option}", str(getattr(args, option))]
    return words + [word for setting in args.set for word in ("--set", setting)]
