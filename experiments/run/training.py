"""A training's progress files, and the expected hashes of its parameters.

An observer can follow a training in two files in the repetition's directory. Rank 0 adds a line to `STEPS`
after each of its steps. The run writes to `COURSE` when the measurement begins and when a fault is made or
undone. Times are read from CLOCK_MONOTONIC, in ns. Measurements do not use these files.

Digests are hashes of the parameters. A single process computes the expected digests without a network, once
for a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mrclab.experiments.result.file import write_whole
from mrclab.experiments.spec.fault_schedule import PlannedFault
from mrclab.experiments.spec.placement import Placement
from mrclab.hosts.training.model import Settings

STEPS, COURSE = "steps.jsonl", "course.jsonl"


class CourseLog:
    """Write the time at which a measurement begins, and its faults, to a file.

    If the file is None, write nothing.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file

    def begin(self, measure_ns: int) -> None:
        """Record when the measurement begins."""
        self._add({"measure_ns": measure_ns})

    def note(self, fault: PlannedFault, t_ns: int, undone: bool) -> None:
        """Record that a fault was made or undone."""
        self._add({"kind": fault.kind, "place": fault.place, "t_ns": t_ns, "undone": undone})

    def _add(self, line: Mapping[str, Any]) -> None:
        if self._file is not None:
            with self._file.open("a", encoding="utf-8", newline="\n") as out:
                out.write(json.dumps(line) + "\n")


@dataclass
class Progress:
    """The progress of a repetition up to now. Times are in us since the measurement began."""

    start_us: list[float] = field(default_factory=list)
    computed_us: list[float] = field(default_factory=list)
    end_us: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """The losses of rank 0's batches, in nats per character."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Each fault has ``kind``, ``place``, ``at_us`` and ``until_us`` (None while the fault lasts)."""


def progress_of(directory: Path) -> Progress | None:
    """Return the progress from a repetition's files; None if its measurement has not begun."""
    course = _lines(directory / COURSE)
    if not course:
        return None
    measure_ns = course[0]["measure_ns"]
    found = Progress()
    for line in course[1:]:
        at_us = (line["t_ns"] - measure_ns) / 1e3
        if not line["undone"]:
            fault = {"kind": line["kind"], "place": line["place"], "at_us": at_us, "until_us": None}
            found.faults.append(fault)
            continue
        for fault in found.faults:
            if fault["place"] == line["place"] and fault["until_us"] is None:
                fault["until_us"] = at_us
    for line in _lines(directory / STEPS):
        for name in ("start", "computed", "end"):
            getattr(found, f"{name}_us").append((line[f"{name}_ns"] - measure_ns) / 1e3)
        found.losses.append(line["loss"])
    return found


def words_of(directories: Mapping[str, Path], steps: int, elapsed_s: float) -> str:
    """Return a text like ``mrc 1/3: step 41 of 90, loss 2.71, about 6 min left``; empty before step 1.

    ``directories`` has each repetition's directory by name, in the order of the run. ``elapsed_s`` is the
    time since the first repetition began. The time left is computed from two means: the time of a step, and
    the time from the beginning of a repetition to its first step.
    """
    for number, (name, directory) in reversed(list(enumerate(directories.items()))):
        found = progress_of(directory)
        if found is None or not found.losses:
            continue
        done = len(found.losses)
        step_s = (found.end_us[-1] - found.start_us[0]) / 1e6 / done
        start_s = max(0.0, elapsed_s - (number * steps + done) * step_s) / (number + 1)
        left_s = (steps - done) * step_s + (len(directories) - number - 1) * (start_s + steps * step_s)
        left = f"{left_s / 60:.0f} min" if left_s >= 90 else f"{left_s:.0f} s"
        return f"{name}: step {len(found.losses)} of {steps}, loss {found.losses[-1]:.2f}, about {left} left"
    return ""


def _lines(file: Path) -> list[dict[str, Any]]:
    """Return a file's complete lines. If the file is missing, return an empty list."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


TRANSFORMER = "transformer"
TIMEOUT_S = 600.0


def training_alone(placement: Placement, seed: int, directory: Path) -> dict[str, list[str]]:
    """Return a dict whose key ``digests_alone`` has the expected digests of a training.

    For other workloads, return an empty dict.
    """
    if placement.job != TRANSFORMER:
        return {}
    return {"digests_alone": digests_alone(placement.params, len(placement.hosts), seed, directory)}


def digests_alone(params: Mapping[str, Any], ranks: int, seed: int, directory: Path) -> list[str]:
    """Return the digests (hexadecimal) of the parameters before the first step and after each step.

    The digests are stored in ``directory``, so that all transports of a run can use them. Raise
    CalledProcessError or TimeoutExpired if the process that computes them fails.
    """
    settings, steps = Settings.of(params, ranks, seed), int(params["steps"])
    kept = directory / f"alone-{seed}.json"
    asked = {"settings": asdict(settings), "steps": steps}
    if kept.exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
        if found["asked"] == asked:
            return list(found["digests"])
    argv = [sys.executable, "-m", "mrclab.hosts.training.alone", json.dumps(asdict(settings)), str(steps)]
    said = subprocess.run(argv, check=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S).stdout
    digests: list[str] = json.loads(said)
    write_whole(kept, json.dumps({"asked": asked, "digests": digests}) + "\n")
    return digests
