"""Compute the points of a sweep, in processes of this machine or on a Dask cluster.

An executor computes tasks and reports each outcome as soon as its task has ended. If a worker process dies,
its point is computed again. If workers die three times on one point, the point counts as failed.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Protocol

from mrclab.linux.errors import MachineError
from mrclab.sweep.task import Outcome, Task, run_task
from mrclab.workers import begin_worker, end_workers, run_or_end

MOST_DEATHS = 3
CONNECT_S = 10
RESOURCE = "FABRIC"
"""The resource that a Dask worker must offer (``--resources FABRIC=1``) to run fabrics in its kernel."""

Done = Callable[[Outcome], None]
Run = Callable[[Task], Outcome]


class Executor(Protocol):
    """Compute the tasks of a sweep, on this machine or on other machines."""

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        """Compute all tasks in any order. Call ``done`` with each outcome, in the calling thread."""


def gave_up(task: Task) -> Outcome:
    """Return the outcome of a task during which too many worker processes died."""
    return Outcome(task, {}, 0.0, "", f"{MOST_DEATHS} workers died while they were at it")


class LocalProcesses:
    """Worker processes on this machine, which call ``run`` with each task."""

    def __init__(self, workers: int, run: Run = run_task) -> None:
        self._workers = workers
        self._run = run

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        """Compute all tasks. If a worker dies, the pool ends, and a new pool runs the unfinished tasks."""
        waiting = list(reversed(tasks))
        deaths: dict[int, int] = {}
        while waiting:
            waiting = self._with_a_pool(waiting, deaths, done)

    def _with_a_pool(self, waiting: list[Task], deaths: dict[int, int], done: Done) -> list[Task]:
        """Compute tasks until all are done or a worker dies; return the remaining tasks."""
        # A task whose worker died runs alone. So if its worker dies again, no other task is lost.
        suspect = deaths.get(waiting[-1].place, 0) > 0
        workers = 1 if suspect else self._workers
        context = multiprocessing.get_context("spawn")
        under_way: dict[Future[Outcome], Task] = {}
        with ProcessPoolExecutor(
            workers, mp_context=context, initializer=begin_worker, initargs=(os.getpid(),)
        ) as pool:
            try:
                while under_way or waiting:
                    while waiting and len(under_way) < workers:
                        if suspect and deaths.get(waiting[-1].place, 0) == 0:
                            break
                        task = waiting.pop()
                        under_way[pool.submit(run_or_end, self._run, task)] = task
                    if not under_way:
                        return waiting
                    ready, _ = wait(under_way, return_when=FIRST_COMPLETED)
                    for future in ready:
                        outcome = future.result()
                        del under_way[future]
                        done(outcome)
            except BrokenProcessPool:
                for task in under_way.values():
                    deaths[task.place] = deaths.get(task.place, 0) + 1
                    if deaths[task.place] < MOST_DEATHS:
                        waiting.append(task)
                    else:
                        done(gave_up(task))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                end_workers()
                raise
        return waiting


class DaskCluster:
    """Workers of a Dask scheduler. Raise MachineError if Dask is not installed or no scheduler answers."""

    def __init__(self, scheduler: str, run: Run = run_task) -> None:
        try:
            import distributed
        except ImportError:
            raise MachineError(
                "Dask is not installed", "pip install 'mrclab[sweep]' here and on the workers"
            ) from None
        self._run = run
        try:
            if Path(scheduler).is_file():
                self._client = distributed.Client(scheduler_file=scheduler, timeout=CONNECT_S)
            else:
                self._client = distributed.Client(scheduler, timeout=CONNECT_S)
        except (OSError, ValueError) as error:
            raise MachineError(
                f"no Dask scheduler answers at {scheduler} ({type(error).__name__})",
                "start one: dask scheduler; and workers: dask worker ADDRESS --nthreads 1",
            ) from None

    def run(self, tasks: Sequence[Task], done: Done) -> None:
        """Compute all tasks. Dask gives the points of dead workers to other workers, up to three times."""
        import distributed

        try:
            by_future = {
                self._client.submit(
                    self._run,
                    task,
                    key=f"mrclab-{task.name}",
                    pure=False,
                    resources={RESOURCE: 1} if task.one_at_a_time else None,
                ): task
                for task in tasks
            }
            for future in distributed.as_completed(by_future):
                try:
                    outcome = future.result()
                except distributed.KilledWorker:
                    outcome = gave_up(by_future[future])
                done(outcome)
                future.release()
        finally:
            self._client.close()
