"""The container, as docker-compose.yml has it: an experiment on each target, and what it leaves behind.

Skipped without a Docker daemon or the image (`make docker-build`): nothing is built or pulled here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from experiments.report.result import result_schema
from testbed.names import DEFAULT_PREFIX
from tests.support.paths import ROOT
from tests.support.shell_script import SCRIPT

pytestmark = [pytest.mark.docker, pytest.mark.slow]

IMAGE = "mrclab:latest"
TIMEOUT_S = 300
OWNER = 1234
PROJECT = f"mrclab-test-{os.getpid()}"


def said(*command: str, **options: Any) -> str:
    options |= {"env": {**os.environ, "COMPOSE_PROJECT_NAME": PROJECT}, "timeout": TIMEOUT_S}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def compose() -> list[str]:
    """The compose command that this machine has."""
    if shutil.which("docker") is None:
        pytest.skip("no docker on PATH")
    if subprocess.run(["docker", "image", "inspect", IMAGE], capture_output=True, check=False).returncode:
        pytest.skip(f"no Docker daemon that answers, or no image {IMAGE} (make docker-build)")
    for command in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(command[0])
            and not subprocess.run([*command, "version"], capture_output=True, check=False).returncode
        ):
            return command
    pytest.skip("neither 'docker compose' nor docker-compose")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What of a checkout a run needs, somebody else's where we may give it away."""
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "results").mkdir()
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "results"):
            os.chown(path, OWNER, OWNER)
    return tmp_path


def machine() -> dict[str, object]:
    """What a container could leave behind."""
    ours = f"label=com.docker.compose.project={PROJECT}"
    return {
        "containers": said("docker", "ps", "--all", "--quiet", "--filter", ours),
        "links": [line.split(":")[1] for line in said("ip", "-o", "link").splitlines()],
        "qdiscs": said("tc", "qdisc"),
        "netns": sorted(path.name for path in Path("/run/netns").glob(f"{DEFAULT_PREFIX}*")),
    }


@pytest.mark.parametrize("target", ["bmv2", "ebpf"])
def test_an_experiment_in_the_container(compose: list[str], checkout: Path, target: str) -> None:
    before = machine()
    words = ["run", "--rm", "-T", "lab", "mrclab", "run", "link-kill", "--topology", "tiny", "--trials", "2"]
    said(*compose, *words, "--target", target, cwd=checkout)
    (found,) = checkout.glob("results/link-kill/*/result.json")
    result = json.loads(found.read_text())
    jsonschema.validate(result, result_schema())
    assert result["target"] == target
    assert [trial["integrity"] for trial in result["trials"]] == ["ok"] * 2
    owner = checkout.stat()
    for path in (checkout / "results").rglob("*"):
        assert (path.stat().st_uid, path.stat().st_gid) == (owner.st_uid, owner.st_gid), path
    assert machine() == before


@pytest.mark.parametrize("target", ["bmv2", "ebpf"])
def test_the_p4runtime_shell_in_the_container(compose: list[str], checkout: Path, target: str) -> None:
    shell = f"mrclab up --topology tiny --target {target} && mrclab shell p0-t0-0 && mrclab down"
    out = said(*compose, "run", "--rm", "-T", "shell", "sh", "-c", shell, cwd=checkout, input=SCRIPT)
    assert "micro_segment.my_sid" in out
    assert "FOUND 1 MrcIngress.ingress_fault.blackhole" in out
