"""Worker processes on this machine. They end when the process that started them ends."""

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
"""The time, s, after SIGTERM within which a task must remove its files."""


@dataclass(frozen=True)
class Workers:
    """A pool of ``count`` processes that wait for tasks."""

    count: int
    pool: ProcessPoolExecutor


def copies(count: int) -> Workers:
    """Start workers as copies (forks) of this process. No other thread of this process may hold a lock.

    A copy has already imported the modules. Only Linux copies a process safely: on macOS, system libraries
    fail in a copy. So on macOS and Windows each worker is a new process and imports the modules again.
    """
    copied = is_linux()
    context = multiprocessing.get_context("fork" if copied else "spawn")
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=begin_worker, initargs=(os.getpid(),))
    if copied:
        # Block signals during the start, so that no worker gets a signal before it is prepared.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
        try:
            pool.submit(_nothing)  # the first task starts all workers
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return Workers(count, pool)


def _nothing() -> None:
    """Do nothing."""


def begin_worker(parent_pid: int) -> None:
    """Prepare a worker: it ignores Ctrl-C, and ends when its parent process ends or is killed.

    SIGTERM ends a worker immediately, except in a task (`run_or_end`). SIGTERM raises no exception here: the
    pool would catch an exception during the sending of a result, and would send the result again. Sending
    needs a lock. If another worker was killed while it held the lock, this worker would wait forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if is_linux():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals.SIGNALS)
        end_with_parent(signal.SIGTERM)
        if os.getppid() != parent_pid:
            raise SystemExit(f"process {parent_pid}, which started this worker, has ended")


def _end(number: int, frame: object) -> None:
    """End a task by an exception, so that the task first ends its run and removes its files.

    In a finalizer and some callbacks Python ignores exceptions, and the task would continue. So an alarm ends
    the process after ``END_S`` seconds.
    """
    signal.signal(number, signal.SIG_IGN)
    if is_linux():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, END_S)
    raise signals.Ended(number)


def run_or_end(run: Callable[Asked, Found], *args: Asked.args, **named: Asked.kwargs) -> Found:
    """Run a worker's task. SIGTERM raises an exception in the task, and then ends the process.

    After SIGTERM this function does not return. Otherwise the pool would take the exception as a result.
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
    """Let SIGTERM end the process immediately. Until this call, SIGTERM raises an exception."""
    if not is_linux():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    # Block SIGTERM, because Python loses a signal that arrives just before its handler is replaced.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def end_workers() -> None:
    """End all workers of this process immediately, even if they have not finished their tasks."""
    for worker in multiprocessing.active_children():
        worker.terminate()
