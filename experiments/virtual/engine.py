"""Runs a scenario in virtual time: transport after transport, in this process.

`mrclab.run_jobs` runs the repetitions in several processes.
"""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path

from mrclab.experiments.measure.repetition import Repetition, measure, save_repetition
from mrclab.experiments.run.outcome import Outcome, repetition_directory
from mrclab.experiments.spec.model import SIMULATED, Scenario
from mrclab.experiments.spec.transports import require_simulated
from mrclab.experiments.virtual.repetition import VirtualRepetition
from mrclab.hosts.transports.table import Transport
from mrclab.topologies import Fabric, one_plane


def run_scenario(
    scenario: Scenario,
    out: Path,
    outcome: Outcome,
    *,
    say: Callable[[str], None],
    step: Callable[[int], None],
) -> None:
    """Run every transport; live targets have `mrclab.experiments.live.engine.run_scenario`. Raise InputError.

    ``say`` gets progress messages, ``step`` how many trials (or repetitions, without trials) are done in all.
    """
    require_simulated(scenario.workload.kind, scenario.transports)
    outcome.target = SIMULATED
    fabric = scenario.fabric()
    each = scenario.steps // (len(scenario.transports) * scenario.repetitions)
    done = 0

    def one_more() -> None:
        nonlocal done
        done += 1
        step(done)

    for transport in scenario.transports:
        numbers = outcome.left(scenario, transport)
        done += each * (scenario.repetitions - len(numbers))
        step(done)
        say(f"{transport.name}: {transport.described}")
        for number in numbers:
            found = repeat(scenario, transport, fabric, number, out, one_more)
            outcome.began = True
            outcome.add(transport.name, found)
            if not scenario.sequences:
                one_more()


def repeat(
    scenario: Scenario,
    transport: Transport,
    fabric: Fabric,
    number: int,
    out: Path,
    step: Callable[[], None],
) -> Repetition:
    """Run, measure and save one repetition of a transport; call ``step`` after each trial."""
    used = one_plane(fabric) if transport.one_plane else fabric
    found = _measured(VirtualRepetition(scenario, transport, used, out, step), number)
    directory = repetition_directory(out, transport.name, number)
    if not scenario.measure.capture:
        shutil.rmtree(directory / "captures", ignore_errors=True)
    save_repetition(directory, found)
    return found


def _measured(runner: VirtualRepetition, number: int) -> Repetition:
    """Run and measure a repetition.

    Nothing in a run becomes garbage that only the collector could find, so it stays off until the end.
    """
    gc.disable()
    try:
        return measure(runner.run(number))
    finally:
        gc.enable()
        gc.collect()
