"""run.json: the request of a run, from its start on. With its repetitions it gives a result at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from mrclab.experiments.measure.repetition import REPETITION_FILE, Repetition, load_repetition
from mrclab.experiments.report.build import Run, build
from mrclab.experiments.result.file import NAME as RESULT
from mrclab.experiments.result.file import save_result
from mrclab.experiments.spec.json_files import read_form, write_whole
from mrclab.linux.errors import InputError

NAME = "run.json"
KILLED = "it ended without a word"
_FORM = TypeAdapter(Run)


def save_run(directory: Path, run: Run) -> Path:
    """Write DIR/run.json, whole or not at all, and return its path."""
    return write_whole(directory / NAME, json.dumps(asdict(run), indent=1) + "\n")


def load_run(directory: Path) -> Run:
    """Read DIR/run.json. Raise InputError if there is none, or it is something else."""
    missing = f"no run in '{directory}': give the directory of a run"
    return read_form(_FORM, directory / NAME, "run", missing)


def load_repetitions(directory: Path, run: Run) -> dict[str, list[Repetition]]:
    """Return the findings of a run's repetitions so far, by transport. Raise InputError."""
    found: dict[str, list[Repetition]] = {}
    for transport in run.transports:
        for number in range(int(run.parameters["repetitions"])):
            place = directory / f"{transport.name}-{number}"
            if (place / REPETITION_FILE).exists():
                found.setdefault(transport.name, []).append(load_repetition(place))
    return found


def save_unfinished(
    directory: Path, run: Run, repetitions: Mapping[str, Sequence[Repetition]], why: str
) -> dict[str, Any] | None:
    """Write the result of a run that was ended, and return it; None if nothing was measured."""
    if not any(repetitions.values()):
        return None
    result = build(run, repetitions, unfinished=why)
    save_result(directory, result)
    return result


def rebuild(directory: Path) -> None:
    """Write the result of a run that was killed before it could; do nothing if there is one.

    Raise InputError if it measured nothing.
    """
    if (directory / RESULT).exists() or not (directory / NAME).exists():
        return
    run = load_run(directory)
    if save_unfinished(directory, run, load_repetitions(directory, run), KILLED) is None:
        raise InputError(f"no result in '{directory}': the run ended before anything was measured")
