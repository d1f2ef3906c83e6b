"""Run a student's scenarios again, in virtual time, to compare the results with the submitted results."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mrclab.experiments.spec.model import Scenario
from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.labs.checks import Hint, NotHere, require
from mrclab.linux.errors import InputError
from mrclab.topologies.yaml_lines import read_yaml

CACHE = "MRCLAB_LAB_RUNS"
"""The environment variable that names a folder for results. Equal scenarios of a class then run only once."""
_TIMES = ("first_loss_us", "detected_us", "recovered_us")
_SHIPPED = re.compile(r"[a-z0-9-]+")
_KEYS = {
    *("name", "description", "claim", "topology", "transports", "workload", "faults"),
    *("repetitions", "warmup", "limit", "seed"),
}
"""The keys of a student's scenario. Other keys can name files or Python code, which must not run here."""
_LONGEST_WORDS = 300


def student_scenario(text: str) -> Scenario:
    """Return the scenario in a student's ``cuts.yaml``.

    Raise Hint if it is invalid, or if it may name a file or Python code: this process has all rights.
    """
    try:
        found = read_yaml(text, "cuts.yaml").data
        for key in found:
            require(key in _KEYS, f"cuts.yaml: this lab needs no key '{key}': leave it out.")
        require(
            isinstance(found.get("topology"), str) and _SHIPPED.fullmatch(found["topology"]),
            "cuts.yaml should name one of mrclab's own topologies, such as tiny.",
        )
        workload = found.get("workload")
        require(
            isinstance(workload, dict) and workload.get("kind") == "stream",
            "cuts.yaml: the workload should be a stream, as in the skeleton.",
        )
        for word in _texts(found.get("transports")):
            require(":" not in word, f"cuts.yaml: a transport of this lab names no code such as '{word}'.")
        return parse_scenario(text, "cuts.yaml")
    except InputError as error:
        raise Hint(f"mrclab cannot read your scenario: {error}") from None


def _texts(value: Any) -> Iterator[str]:
    """Yield the keys and the texts in a value of YAML, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for part in (*value, *value.values()):
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def run_again(text: str, repetitions: int, limit_s: float) -> list[dict[str, Any]]:
    """Run a scenario and return its trials, in the format of lab 6's ``collect.py``.

    Raise Hint as `student_scenario` does, if the scenario cannot be run in virtual time, or if the run takes
    longer than ``limit_s``.
    """
    scenario = student_scenario(text)
    found: list[dict[str, Any]] = _kept(
        f"{repetitions} {scenario!r}", lambda: _run(text, "cuts.yaml", repetitions, limit_s, _trials)
    )
    return found


def all_reduce_ms(text: str, file: str, limit_s: float) -> tuple[float, float]:
    """Run a scenario of lab 7; return the median time of the all-reduce before and after the fault, in ms.

    Raise Hint if a run in virtual time takes longer than ``limit_s``.
    """
    before, after = _kept(text, lambda: _run(text, file, 1, limit_s, _medians_ms))
    return before, after


def _kept(source: str, made: Callable[[], Any]) -> Any:
    """Return the JSON data that ``made`` makes from ``source``, or the data kept from an earlier call."""
    if not os.environ.get(CACHE):
        return made()
    kept = Path(os.environ[CACHE]) / f"{hashlib.sha256(source.encode()).hexdigest()}.json"
    if kept.is_file():
        return json.loads(kept.read_text(encoding="utf-8"))
    value = made()
    part = kept.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(value), encoding="utf-8")
    part.replace(kept)
    return value


def _run(text: str, file: str, repetitions: int, limit_s: float, read: Callable[[Path], Any]) -> Any:
    """Run a scenario in virtual time. Return the result of ``read`` for the folder of the run."""
    if sys.platform == "emscripten":
        raise NotHere("A run of a scenario takes NumPy and minutes: 'mrclab lab check' makes it.")
    rooms = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="mrclab-lab-") as scratch:
        (Path(scratch) / file).write_text(text, encoding="utf-8")
        words = ["run", file, "--target", "sim", "--out", "run", "--set", f"repetitions={repetitions}"]
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-m", "mrclab", *words],
                cwd=scratch,
                env={**os.environ, "PYTHONPATH": rooms},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=limit_s,
            )
        except subprocess.TimeoutExpired:
            raise Hint(f"A run of {file} took longer than {limit_s:g} s.") from None
        if done.returncode != 0:
            words_of_run = " ".join(done.stderr.split())[-_LONGEST_WORDS:]
            raise Hint(f"'mrclab run {file} --target sim' fails: {words_of_run}")
        return read(Path(scratch) / "run")


def _trials(folder: Path) -> list[dict[str, Any]]:
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return [
        {
            "transport": trial["transport"],
            "where": trial["fault"]["where"],
            **{time: trial[time] for time in _TIMES},
        }
        for trial in result["trials"]
    ]


def _medians_ms(folder: Path) -> list[float]:
    import numpy as np  # imported here because Python in a browser has no numpy

    data = np.load(folder / "mrc-0" / "data.npz")
    ranks = sorted({name.split("_")[0] for name in data if name.startswith("rank")})
    start, computed, reduced, end = (
        np.stack([data[f"{rank}_{what}_ns"] for rank in ranks])
        for what in ("start", "computed", "reduced", "end")
    )
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    fault_ns = result["transports"]["mrc"]["faults"][0]["t_before_ns"]
    took_ns = (reduced - computed).max(axis=0)
    before, after = end.max(axis=0) < fault_ns, start.min(axis=0) > fault_ns
    return [float(np.median(took_ns[side])) / 1e6 for side in (before, after)]
