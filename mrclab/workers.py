"""Worker processes of this machine: how they begin, and how they end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from mrclab.linux.life import signals
from mrclab.linux.system import end_with_parent, is_linux

Asked = ParamSpec("Asked")
Found = TypeVar("Found")

END_S = 20.0
"""The time that a task has to remove its files after SIGTERM, s."""


@dataclass(frozen=True)
class Workers:
    """So many processes that wait for tasks."""

    count: int
    pool: ProcessPoolExecutor


def copies(count: int) -> Workers:
    """Start workers with the modules that this process has imported. No thread of it may hold a lock.

    Only Linux copies a process safely (macOS's system libraries fail in a copy). On other systems each worker
    imports the modules again.
    """
    copied = is_linux()
    context = multiprocessing.get_context("fork" if copied else "spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=begin_worker, initargs=(os.getpid(),))
    if copied:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)  # a copy has handlers of ours
        try:
            pool.submit(_nothing)  # the first task starts all
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Workers(count, pool)


def _nothing() -> None:
    """Do nothing."""


def begin_worker(parent_pid: int) -> None:
    """Leave Ctrl-C to the process that started the workers, and end when that one ends or is killed.

    SIGTERM ends a worker at once, except in a task (`run_or_end`). While a worker sends a result, the pool's
    own code would catch an exception of ours and send again. It would wait for ever if another worker was
    killed while it held the lock for sending.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if is_linux():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent_pid:
            raise SystemExit(f"process {parent_pid}, which started this worker, has ended")


def _end(number: int, frame: object) -> None:
    """End a task by an exception, so that the run under way and its files are removed first.

    Python ignores an exception that is raised in a finalizer or in some callbacks. The task would then go on,
    so an alarm ends the process after ``END_S``.
    """
    signal.signal(number, signal.SIG_IGN)
    if is_linux():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, END_S)
    raise signals.Ended(number)


def run_or_end(run: Callable[Asked, Found], *args: Asked.args, **named: Asked.kwargs) -> Found:
    """Run a worker's task. SIGTERM raises an exception in the task, and then ends the process.

    The process ends here, because the pool would return that exception as the result of the task.
    """
    try:
        signal.signal(signal.SIGTERM, _end)
        try:
            return run(*args, **named)
        finally:
            _end_at_once()
    except SystemExit as ended:
        os._exit(int(ended.code or 0))


def _end_at_once() -> None:
    """Let SIGTERM end the process at once. If it came before this call, its exception is still raised."""
    if not is_linux():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    # Without the block, Python drops a signal that comes just before its handler is replaced.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_workers() -> None:
    """End all workers of this process, in the middle of their tasks."""
    for worker in multiprocessing.active_children():
        worker.terminate()
