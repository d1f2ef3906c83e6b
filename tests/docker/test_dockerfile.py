"""Tests that read the Dockerfile, and the files of images based on it, as text. They need no Docker."""

from __future__ import annotations

import json
from pathlib import Path

from mrclab.hosts import compiled
from tests.support.paths import ROOT


def stage(name: str) -> list[str]:
    """Return the lines of a stage of the Dockerfile, from its FROM on."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    begins = [n for n, line in enumerate(lines) if line.startswith("FROM ")]
    (start,) = (n for n in begins if lines[n].endswith(f" AS {name}"))
    return lines[start : min((n for n in begins if n > start), default=len(lines))]


def test_the_stage_that_compiles_the_core_has_all_of_its_source() -> None:
    copied = {words[1] for words in map(str.split, stage("core")) if words[:1] == ["COPY"]}
    assert {Path(file).parts[1] for file in (*compiled.sources(), compiled.CONSTANTS)} <= copied


def test_the_dev_container_uses_the_environment_of_the_image() -> None:
    lines = (ROOT / ".devcontainer" / "devcontainer.json").read_text().splitlines()
    told = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    assert stage(told["build"]["target"])
    (folder,) = (words[1] for words in map(str.split, stage("ebpf")) if words[:1] == ["WORKDIR"])
    environment = told["containerEnv"]["MRCLAB_VENV"]
    assert environment == f"{folder}/.venv"
    assert f"tools/setup.sh {environment} " in told["postCreateCommand"]
