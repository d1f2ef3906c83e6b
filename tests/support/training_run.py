"""The directory of a running training: one transport has ended, and the next one is running."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.faults import FaultRecord
from mrclab.experiments.measure.repetition import Repetition, save_repetition
from mrclab.experiments.measure.validity import Validity
from mrclab.experiments.report.build import Run, save_run
from mrclab.experiments.run.training import COURSE, STEPS
from mrclab.experiments.spec.scenario import load_scenario

MS = 1_000_000
BEGIN_NS = 5_000 * MS


def begin_run(directory: Path, scenario: str = "training") -> Run:
    """Write run.json, as `mrclab run` does at its start."""
    asked = load_scenario(scenario)
    run = Run(
        scenario=asked.name,
        parameters=asked.to_dict(),
        target="ebpf",
        topology=asked.fabric().name,
        seed=asked.seed,
        transports=asked.transports,
        system={},
        claim=asked.claim,
        figure=None,
        command=("mrclab", "run", scenario),
    )
    save_run(directory, run)
    return run


def finish(directory: Path, name: str, steps: int, stall_ms: float) -> None:
    """Write a repetition that has ended, with a stall in its fifth step."""
    number = name.rsplit("-", 1)[1]
    end_us, now = [], 0.0
    start_us, computed_us = [], []
    for step in range(steps):
        start_us.append(now)
        computed_us.append(now + 120e3)
        now += 150e3 + (stall_ms * 1e3 if step == 4 else 0.0)
        end_us.append(now)
    training = {
        "start_us": start_us,
        "computed_us": computed_us,
        "end_us": end_us,
        "losses": [4.0 - 0.02 * step for step in range(steps)],
    }
    fault = FaultRecord("switch-reboot", "p0-t1-0", BEGIN_NS + 600 * MS, BEGIN_NS + 600 * MS)
    fault = replace(fault, restore_before_ns=BEGIN_NS + 4600 * MS, restore_after_ns=BEGIN_NS + 4600 * MS)
    repetition = Repetition(
        number=int(number),
        measure_ns=BEGIN_NS,
        end_ns=BEGIN_NS + 1,
        metrics={},
        series={},
        links={},
        faults=(fault,),
        trials=(),
        trials_aside=(),
        validity=Validity(()),
        problem=None,
        failure=None,
        counters={},
        bytes_delivered=1,
        data=None,
        details={"training": training},
    )
    place = directory / name
    place.mkdir()
    save_repetition(place, repetition)


def begin(directory: Path, name: str) -> Path:
    """Begin a repetition and return its directory."""
    place = directory / name
    place.mkdir()
    _add(place / COURSE, {"measure_ns": BEGIN_NS})
    return place


def step(place: Path, number: int, took_ms: int = 150) -> None:
    """Add a step of ``took_ms``, of which 120 ms are computing. Steps begin every 150 ms."""
    start_ns = BEGIN_NS + 150 * MS * number
    line = {"start_ns": start_ns, "computed_ns": start_ns + 120 * MS, "end_ns": start_ns + took_ms * MS}
    _add(place / STEPS, {**line, "loss": 4.0 - 0.02 * number})


def fault(place: Path, at_ms: int, *, undone: bool) -> None:
    """Add a fault's beginning to the run's record, or its end if ``undone`` is true."""
    line = {"kind": "flap", "place": "p1-t0-0:p1-t1-0", "t_ns": BEGIN_NS + at_ms * MS, "undone": undone}
    _add(place / COURSE, line)


def _add(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
