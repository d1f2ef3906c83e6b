"""Runs a scenario in virtual time: transport after transport, in this process."""

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
from mrclab.topologies import one_plane


def run_scenario(
    scenario: Scenario,
    out: Path,
    outcome: Outcome,
    *,
    say: Callable[[str], None],
    step: Callable[[int], None],
) -> None:
    """Run every transport; live targets have `mrclab.experiments.run.engine.run_scenario`. Raise InputError.

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
        used = one_plane(fabric) if transport.one_plane else fabric
        for number in numbers:
            runner = VirtualRepetition(scenario, transport, used, out, one_more)
            found = _measured(runner, number)
            outcome.began = True
            directory = repetition_directory(out, transport.name, number)
            if not scenario.measure.capture:
                shutil.rmtree(directory / "captures", ignore_errors=True)
            save_repetition(directory, found)
            outcome.add(transport.name, found)
            if not scenario.sequences:
                one_more()


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
