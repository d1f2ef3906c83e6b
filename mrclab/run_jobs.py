"""Run several repetitions of a scenario at the same time, in virtual time, each in a separate process.

A repetition depends only on its scenario, transport and number. So the number of processes does not change
the results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.repetition import Repetition
from mrclab.experiments.run.outcome import Outcome
from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.transports import require_simulated
from mrclab.experiments.virtual.engine import repeat
from mrclab.linux.errors import MachineError
from mrclab.workers import Workers, copies, end_workers, run_or_end

AFTERWARDS = "mrclab.experiments.report.write"
"""The module that writes the report. Its import is slow, so it is imported while the workers run."""

MOST_PARTS = 4
"""The largest number of processes that draw pictures, because a run has few pictures."""


@dataclass(frozen=True)
class Part:
    """One repetition: its transport's index in the scenario, its number, and its start time in s."""

    place: int
    number: int
    began_s: float = 0.0


def run_in_processes(
    workers: Workers,
    scenario: Scenario,
    out: Path,
    outcome: Outcome,
    *,
    say: Callable[[str], None],
    step: Callable[[int], None],
) -> None:
    """Run all repetitions of a scenario like the engine's `run_scenario`, ``workers.count`` at a time.

    The workers end when the run ends. ``step`` gets the number of trials in finished repetitions. Raise
    InputError if a transport or the workload cannot be simulated, and MachineError if a process dies.
    """
    require_simulated(scenario.workload.kind, scenario.transports)
    outcome.target = SIMULATED
    parts = [
        Part(place, number)
        for place, transport in enumerate(scenario.transports)
        for number in outcome.left(scenario, transport)
    ]
    names = [transport.name for transport in scenario.transports]
    each = scenario.steps // (len(names) * scenario.repetitions)
    done = scenario.steps - each * len(parts)
    step(done)
    say(f"{len(parts)} repetitions, {workers.count} at a time")

    def add(part: Part, found: Repetition) -> None:
        nonlocal done
        outcome.add(names[part.place], found)
        outcome.began = True
        done += each
        step(done)

    try:
        _run_all(workers, scenario, out, parts, add)
    finally:
        found = outcome.repetitions
        outcome.repetitions = {name: found[name] for name in names if name in found}


def _run_all(
    workers: Workers,
    scenario: Scenario,
    out: Path,
    parts: Sequence[Part],
    add: Callable[[Part, Repetition], None],
) -> None:
    """Run each part as soon as a worker is free. Call ``add`` with each result as soon as a part is done."""
    waiting, took_s = list(parts), dict[int, float]()
    under_way: dict[Future[Repetition], Part] = {}
    with workers.pool as pool:
        try:
            while waiting or under_way:
                while waiting and len(under_way) < workers.count:
                    part = longest(waiting, took_s)
                    waiting.remove(part)
                    future = pool.submit(run_or_end, _repeat, scenario, part.place, part.number, out)
                    under_way[future] = replace(part, began_s=time.monotonic())
                import_module(AFTERWARDS)
                ready, _ = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ready:
                    found = future.result()
                    part = under_way.pop(future)
                    took_s[part.place] = time.monotonic() - part.began_s
                    add(part, found)
        except BrokenProcessPool:
            lost = [f"{scenario.transports[p.place].name} {p.number + 1}" for p in under_way.values()]
            said = f"a process that ran a repetition was killed (under way: {', '.join(lost) or 'none'})"
            mend = "give it more memory, or run fewer repetitions at a time (--jobs)"
            raise MachineError(said, mend) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_workers()
            raise


def longest(waiting: Sequence[Part], took_s: Mapping[int, float]) -> Part:
    """Return the part to run next: a part of the slowest transport, so that slow parts do not run last.

    ``took_s`` has the duration, s, of a part of each transport. A transport without a duration counts as the
    slowest.
    """
    return max(waiting, key=lambda part: took_s.get(part.place, math.inf))


def draw_in_processes(jobs: int, directory: Path, result: Mapping[str, Any]) -> None:
    """Draw a result's pictures as `draw_all` does, in ``jobs`` processes. Raise MachineError if one dies."""
    from mrclab.experiments.report.pictures import draw_all  # imported here because the import is slow

    parts = min(jobs, MOST_PARTS)
    try:
        with copies(parts).pool as pool:
            list(pool.map(partial(draw_all, directory, result, parts=parts), range(parts)))
    except BrokenProcessPool:
        raise MachineError("a process that drew pictures was killed", "mrclab report draws them") from None


def _repeat(scenario: Scenario, place: int, number: int, out: Path) -> Repetition:
    return repeat(scenario, scenario.transports[place], scenario.fabric(), number, out, _no_step)


def _no_step() -> None:
    """Do nothing, because a worker does not show progress."""
