"""A scenario in virtual time with several repetitions at a time, each in a process of its own.

A repetition depends on its scenario, transport and number alone, so the results are those of one process.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.transports import require_simulated
from mrclab.experiments.virtual.engine import repeat
from mrclab.linux.errors import MachineError
from mrclab.sweep.executors import begin_worker


def run_in_processes(
    jobs: int,
    scenario: Scenario,
    out: Path,
    outcome: Outcome,
    *,
    say: Callable[[str], None],
    step: Callable[[int], None],
) -> None:
    """Run every transport as the engine's `run_scenario` does, ``jobs`` repetitions at a time.

    Trials are counted when their repetition is done. Raise InputError, and MachineError if a process dies.
    """
    require_simulated(scenario.workload.kind, scenario.transports)
    outcome.target = SIMULATED
    each = scenario.steps // (len(scenario.transports) * scenario.repetitions)
    left = [
        (place, number)
        for place, transport in enumerate(scenario.transports)
        for number in outcome.left(scenario, transport)
    ]
    done = scenario.steps - each * len(left)
    step(done)
    say(f"{len(left)} repetitions, {jobs} at a time")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        min(jobs, max(1, len(left))), mp_context=context, initializer=begin_worker, initargs=(os.getpid(),)
    ) as pool:
        futures = {pool.submit(_repeat, scenario, place, number, out): place for place, number in left}
        try:
            for future in as_completed(futures):
                outcome.add(scenario.transports[futures[future]].name, future.result())
                outcome.began = True
                done += each
                step(done)
        except BrokenProcessPool:
            mend = "give it more memory, or run fewer repetitions at a time (--jobs)"
            raise MachineError("a process that ran a repetition was killed", mend) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            names = (transport.name for transport in scenario.transports)
            found = outcome.repetitions
            outcome.repetitions = {name: found[name] for name in names if name in found}


def _repeat(scenario: Scenario, place: int, number: int, out: Path) -> Repetition:
    return repeat(scenario, scenario.transports[place], scenario.fabric(), number, out, _no_step)


def _no_step() -> None:
    """Do nothing: a worker does not show progress."""
