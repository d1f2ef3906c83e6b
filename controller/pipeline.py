"""The switch program as both targets load it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

PROGRAM = "mrc_switch"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Where p4c's two outputs lie: the P4Info (text) and the BMv2 JSON."""

    p4info: Path
    json: Path


def shipped_pipeline() -> Pipeline:
    """Return the checked-in build of p4src."""
    build = Path(str(files("mrclab.p4src"))) / "build"
    return Pipeline(build / f"{PROGRAM}.p4info.txtpb", build / f"{PROGRAM}.json")
