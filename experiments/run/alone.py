"""The expected digests (hashes of the parameters) of a training, for comparison with those of its ranks.

One process computes them without a network, once for all transports of a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mrclab.experiments.spec.json_files import write_whole
from mrclab.experiments.spec.placement import Placement
from mrclab.hosts.training.settings import Settings

TRANSFORMER = "transformer"
TIMEOUT_S = 600.0


def training_alone(placement: Placement, seed: int, directory: Path) -> dict[str, list[str]]:
    """Return the ``digests_alone`` of a training, for a repetition's details; empty for other workloads."""
    if placement.job != TRANSFORMER:
        return {}
    return {"digests_alone": digests_alone(placement.params, len(placement.hosts), seed, directory)}


def digests_alone(params: Mapping[str, Any], ranks: int, seed: int, directory: Path) -> list[str]:
    """Return the digests (hexadecimal) of the parameters before the first step and after each.

    They are kept in ``directory``, which all transports of a run share. Raise CalledProcessError or
    TimeoutExpired if the process fails.
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
