"""The common parts of all pages: the run, the command that repeats it, the machine, the verdict."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrclab.experiments.report.grouping import grouped
from mrclab.experiments.report.table import failed, judged
from mrclab.experiments.result.model import TIMES
from mrclab.experiments.result.numbers import UNITS


def head_of(directory: Path, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for every page's template: the run, its validity, the command that repeats it."""
    return {
        "name": result["scenario"],
        "topology": result["topology"],
        "target": result["target"],
        "seed": result["seed"],
        "finished": result["finished"].replace("T", " ").replace("+00:00", " UTC"),
        "valid": result["valid"],
        "doubtful": not result["valid"],
        "reasons": grouped(result["validity"]["reasons"], result),
        "notes": [*grouped(result["validity"]["notes"], result), *failed(result)],
        "integrity": result["integrity"],
        "command": command_of(result),
        "directory": shlex.quote(str(directory.resolve())),
        "method": [(key, text) for key, text in result["method"].items() if _is_used(key, text, result)],
        "system": machine_of(result["system"]),
    }


_OF_FAULTS = (
    "taken",
    "in_flight",
    "felt",
    "zero",
    "rule",
    "rtt",
    "error",
    *(t.removesuffix("_us") for t in TIMES),
)


def _is_used(key: str, text: Any, result: Mapping[str, Any]) -> bool:
    """Return True if a page must explain the term ``key``: if the result has values of this name."""
    if not isinstance(text, str):
        return False
    if key in _OF_FAULTS:
        return bool(result["trials"])
    if key.rpartition("_")[2] not in UNITS and key not in ("stop_depth", "blocked_packets"):
        return True
    metrics = {name.partition("@")[0] for part in result["transports"].values() for name in part["summary"]}
    return key in metrics


def command_of(result: Mapping[str, Any]) -> str:
    """Return the command line that repeats a run. If none is recorded, make one from the result."""
    recorded = result.get("command")
    if isinstance(recorded, list) and recorded:
        return shlex.join(str(word) for word in recorded)
    words = [
        "mrclab",
        "run",
        result["scenario"],
        "--topology",
        result["topology"],
        "--target",
        result["target"],
    ]
    if trials := result.get("parameters", {}).get("trials"):
        words += ["--trials", str(trials)]
    return shlex.join([*words, "--seed", str(result["seed"])])


def machine_of(system: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values for the page's table of the machine. Skip unknown values."""
    memory = system.get("memory_bytes")
    packages = system.get("packages", {})
    git = system.get("git") or {}
    rows = [
        ("CPUs", f"{system.get('cpus_usable', '?')} of {system.get('cpu_model', 'unknown')}"),
        ("memory", f"{memory / 2**30:.0f} GiB" if memory else None),
        ("virtual", "yes" if system.get("virtual") else "no"),
        ("system", system.get("distribution")),
        ("kernel", system.get("kernel")),
        ("Python", system.get("python")),
        ("packages", ", ".join(f"{name} {version}" for name, version in packages.items())),
        (
            "commit",
            f"{git['commit'][:12]}{', changed' if git.get('dirty') else ''}" if git.get("commit") else None,
        ),
        ("switch program", str(system.get("p4_json_sha256", ""))[:16] or None),
    ]
    return [(name, str(value)) for name, value in rows if value]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on a run's claim in words, its CSS class, the reason, and the paper's values."""

    verdict: str = ""
    colour: str = "unknown"
    found: str = ""
    paper: str = ""


_MICRO = re.compile(r"(?<=[\d\]] )us\b|(?<=tens of )us\b")


def micro(text: str) -> str:
    """Return a text with the micro sign in place of the ``us`` that the terminal shows."""
    return _MICRO.sub("\N{MICRO SIGN}s", text)


def judgement(result: Mapping[str, Any]) -> Judgement:
    """Return the verdict of a result. It is empty if the result was not judged."""
    found = judged(result)
    if found is None:
        return Judgement()
    paper = result["verdict"].get("paper") or ""
    return Judgement(found.word, found.colour, micro(found.because), micro(paper))
