"""The switch program in the form that both targets load."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

PROGRAM = "mrc_switch"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The paths of p4c's two output files: the P4Info (text) and the BMv2 JSON."""

    p4info: Path
    json: Path


def shipped_pipeline() -> Pipeline:
    """Return the build of p4src that is in the repository."""
    build = Path(str(files("mrclab.p4src"))) / "build"
    return Pipeline(build / f"{PROGRAM}.p4info.txtpb", build / f"{PROGRAM}.json")
