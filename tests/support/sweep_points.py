"""Functions that compute a sweep's points in tests. Any worker process can import this module."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from mrclab.sweep.task import Outcome, Task


def count(task: Task) -> Outcome:
    """Return an outcome with the task's seed as the value ``x``."""
    return Outcome(task, {"x": float(task.seed)}, 0.0, "here")


def die_once(task: Task) -> Outcome:
    """Kill this process if the seed is 3, but only once. A file in ``params['folder']`` records the kill."""
    mark = Path(str(task.params["folder"])) / "died"
    if task.seed == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return count(task)


def die_always(task: Task) -> Outcome:
    """Kill this process if the seed is 3, each time that this point is computed."""
    if task.seed == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return count(task)


def report_pid_and_wait(task: Task) -> Outcome:
    """Write this process's id into the pipe ``params['pipe']`` and wait for a signal."""
    with Path(str(task.params["pipe"])).open("w") as pipe:
        pipe.write(f"{os.getpid()}\n")
    signal.pause()
    return count(task)
