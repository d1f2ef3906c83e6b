"""One point of a sweep as a task: its name, its computation in any process, and the file of its result.

A task contains its input as text, so a worker on another machine needs only the same version of mrclab. The
name of a task is a hash of its parameters, its seed and the source code that computes the task.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from mrclab.linux.errors import InputError, MrclabError
from mrclab.linux.life import signals
from mrclab.sweep.spec import Plain, Point, SweepFile

SOURCE_OF_MODELS = ("scale", "topologies", "sweep", "experiments/measure")
SOURCE_OF_RUNS = (
    "p4src",
    "linux",
    "topologies",
    "faults",
    "switches",
    "controller",
    "hosts",
    "native",
    "simulator",
    "testbed",
    "experiments",
)
_SOURCE_FILES = (".py", ".yaml", ".json", ".p4", ".txtpb", ".c", ".h")
_LAST_LINES = 3


@dataclass(frozen=True)
class Task:
    """One point to compute with a model or a scenario.

    ``text`` is the content of the scenario's file, and ``topology_text`` that of the topology's file. Each is
    None if mrclab ships the file.
    """

    place: int
    model: str | None
    scenario: str | None
    text: str | None
    target: str | None
    topology: str | None
    params: Mapping[str, Plain]
    seed: int
    source: str
    topology_text: str | None = None

    @property
    def name(self) -> str:
        """The name of the point's file. Equal parameters, seed and source code give the same name."""
        content = {key: value for key, value in vars(self).items() if key != "place"}
        content["params"] = dict(sorted(self.params.items()))
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]

    @property
    def one_at_a_time(self) -> bool:
        """Return True if the task needs a live fabric, so that a machine can run only one such task."""
        return self.scenario is not None and self.target != "sim"


@dataclass(frozen=True)
class Outcome:
    """The result of a task: its metrics, or, if the task failed, the reason in one line."""

    task: Task
    metrics: Mapping[str, float]
    seconds: float
    host: str
    error: str = ""


class PointError(MrclabError):
    """A point could not be computed."""


def task_of(
    sweep: SweepFile, text: str | None, point: Point, topology: tuple[str, str] | None = None
) -> Task:
    """Return the task of a point. ``topology`` has the name and the text of a user's own file."""
    return Task(
        point.place,
        sweep.model,
        sweep.scenario,
        text,
        sweep.target,
        sweep.topology if topology is None else topology[0],
        dict(point.params),
        point.seed,
        source_of(sweep.scenario is not None),
        None if topology is None else topology[1],
    )


@cache
def source_of(of_runs: bool) -> str:
    """Return a hash of the code that computes points: all packages if ``of_runs``, else only the models."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for folder in SOURCE_OF_RUNS if of_runs else SOURCE_OF_MODELS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SOURCE_FILES and path.is_file():
                digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def run_task(task: Task) -> Outcome:
    """Compute a point in a worker process. If this fails, return an outcome with the error."""
    began = time.monotonic()
    metrics: Mapping[str, float] = {}
    error = ""
    try:
        if source_of(task.scenario is not None) != task.source:
            raise PointError(f"{socket.gethostname()} has another version of mrclab: install the same there")
        if task.model is not None:
            from mrclab.sweep.models import run_model  # imports NumPy, which a scenario does not need

            metrics = run_model(task.model, task.params, task.seed)
        else:
            metrics = _run_scenario(task)
    except (MrclabError, ValueError, OSError) as caught:
        error = str(caught)
    return Outcome(task, metrics, time.monotonic() - began, socket.gethostname(), error)


def _run_scenario(task: Task) -> Mapping[str, float]:
    """Run a scenario as `mrclab run` does, in a separate process, and read its result."""
    assert task.scenario is not None
    with ExitStack() as held:
        with signals.deferred():
            folder = tempfile.mkdtemp(prefix="mrclab-sweep-")
            held.callback(_remove, folder)
        name = _named(folder, "scenario", task.scenario, task.text)
        options = {"target": task.target}
        if task.topology is not None:
            options["topology"] = _named(folder, "topology", task.topology, task.topology_text)
        out = Path(folder) / "out"
        words = [sys.executable, "-m", "mrclab", "run", name, "--seed", str(task.seed), "--out", str(out)]
        for option, chosen in options.items():
            if chosen is not None:
                words += [f"--{option}", chosen]
        for key, value in task.params.items():
            if key != "topology" or task.topology_text is None:
                words += ["--set", f"{key}={json.dumps(value)}"]
        root = str(Path(__file__).parents[2])
        code, errors = _ran(words, _with(root))
        found = out / "result.json"
        if code != 0 or not found.exists():
            raise PointError(" ".join(errors[-_LAST_LINES:]) or f"mrclab run ended with {code}")
        return metrics_of(json.loads(found.read_text(encoding="utf-8")))


def _named(folder: str, kind: str, name: str, text: str | None) -> str:
    """Return a file's name for the command. Write the file first if mrclab does not ship it."""
    if text is None:
        return name
    path = Path(folder) / kind / f"{Path(name).stem}.yaml"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8", newline="\n")
    return str(path)


def _remove(folder: str) -> None:
    """Remove a folder completely, even if a signal ends this process at the same time."""
    with signals.deferred():
        shutil.rmtree(folder)


def _ran(words: Sequence[str], env: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a command; return its exit code and its lines on stderr.

    If a signal interrupts the wait, end the command, then raise the signal's exception.
    """
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    with subprocess.Popen(words, stdout=nothing, stderr=pipe, text=True, env=env) as process:
        try:
            _, errors = process.communicate()
        except BaseException:
            process.terminate()
            raise
    return process.returncode, errors.strip().splitlines()


def _with(root: str) -> dict[str, str]:
    """Return the environment of this process, changed so that Python finds the packages in ``root`` first."""
    return {**os.environ, "PYTHONPATH": ":".join([root, os.environ.get("PYTHONPATH", "")]).rstrip(":")}


def metrics_of(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the median of each metric for each transport of a run, and ``valid``: 1 if the run was valid."""
    found = {
        f"{transport}.{metric}": float(summary["p50"])
        for transport, part in result["transports"].items()
        for metric, summary in part["summary"].items()
        if summary.get("p50") is not None
    }
    return {**found, "valid": float(bool(result["valid"]))}


class Store:
    """The directory with the files of a sweep's points. Raise InputError if the directory cannot be made."""

    def __init__(self, out: Path) -> None:
        self._folder = out / "points"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"--out: cannot use '{out}': {error.strerror}") from None

    def save(self, outcome: Outcome) -> None:
        """Write an outcome's file atomically. Raise ValueError if the point failed."""
        task = outcome.task
        if outcome.error:
            raise ValueError(f"a failed point is not kept: {outcome.error}")
        path = self._path(task)
        draft = path.with_suffix(f".{os.getpid()}.part")
        content = {
            "schema": "mrclab.point/1",
            "params": dict(task.params),
            "seed": task.seed,
            "source": task.source,
            "metrics": dict(outcome.metrics),
            "seconds": round(outcome.seconds, 3),
            "host": outcome.host,
        }
        with draft.open("w", encoding="utf-8", newline="\n") as file:
            json.dump(content, file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)

    def load(self, tasks: Iterable[Task]) -> dict[int, Mapping[str, float]]:
        """Return the finished tasks' metrics, by index. A damaged or missing file counts as unfinished."""
        found: dict[int, Mapping[str, float]] = {}
        for task in tasks:
            try:
                content: Any = json.loads(self._path(task).read_text(encoding="utf-8"))
                found[task.place] = {name: float(value) for name, value in content["metrics"].items()}
            except (OSError, ValueError, LookupError, TypeError, AttributeError):
                continue
        return found

    def _path(self, task: Task) -> Path:
        return self._folder / f"{task.name}.json"
