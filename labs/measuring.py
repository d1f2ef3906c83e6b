"""Run a student's scenario again, in virtual time, to compare its results with those handed in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mrclab.experiments.spec.scenario import parse_scenario
from mrclab.labs.checks import Hint, require
from mrclab.linux.errors import InputError

CACHE = "MRCLAB_LAB_RUNS"
"""Names a folder that keeps the results of runs, so that equal scenarios of a class are run once."""
_TIMES = ("first_loss_us", "detected_us", "recovered_us")
_SHIPPED = re.compile(r"[a-z0-9-]+")
_LONGEST_WORDS = 300


def run_again(text: str, repetitions: int, limit_s: float) -> list[dict[str, Any]]:
    """Return the trials of a run of a scenario, as ``collect.py`` of lab 6 writes them.

    Raise Hint if it is no scenario for a run in virtual time on a shipped topology, or takes longer than
    ``limit_s``.
    """
    try:
        scenario = parse_scenario(text, "cuts.yaml")
    except InputError as error:
        raise Hint(f"mrclab cannot read your scenario: {error}") from None
    topology = scenario.topology
    require(
        isinstance(topology, str) and _SHIPPED.fullmatch(topology),
        "cuts.yaml should name one of mrclab's own topologies, such as tiny.",
    )
    key = hashlib.sha256(f"{repetitions} {scenario!r}".encode()).hexdigest()
    kept = Path(os.environ[CACHE]) / f"{key}.json" if os.environ.get(CACHE) else None
    if kept is not None and kept.is_file():
        found: list[dict[str, Any]] = json.loads(kept.read_text(encoding="utf-8"))
        return found
    trials = _run(text, repetitions, limit_s)
    if kept is not None:
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(trials), encoding="utf-8")
        part.replace(kept)
    return trials


def _run(text: str, repetitions: int, limit_s: float) -> list[dict[str, Any]]:
    rooms = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory(prefix="mrclab-lab-") as scratch:
        (Path(scratch) / "cuts.yaml").write_text(text, encoding="utf-8")
        words = ["run", "cuts.yaml", "--target", "sim", "--out", "run", "--set", f"repetitions={repetitions}"]
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
            raise Hint(f"A run of cuts.yaml took longer than {limit_s:g} s.") from None
        if done.returncode != 0:
            words_of_run = " ".join(done.stderr.split())[-_LONGEST_WORDS:]
            raise Hint(f"'mrclab run cuts.yaml --target sim' fails: {words_of_run}")
        result = json.loads((Path(scratch) / "run" / "result.json").read_text(encoding="utf-8"))
    return [
        {
            "transport": trial["transport"],
            "where": trial["fault"]["where"],
            **{time: trial[time] for time in _TIMES},
        }
        for trial in result["trials"]
    ]
