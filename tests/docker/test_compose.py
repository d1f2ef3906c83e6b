"""In the container of docker-compose.yml, run an experiment on each target. Then look for leftovers.

If there is no Docker daemon or no image (`make docker-build`), the tests are skipped. They build no image.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from mrclab.experiments.result.model import result_schema
from mrclab.testbed.names import DEFAULT_PREFIX
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
    """Return the compose command that this machine has."""
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
    """Copy the files of a checkout that a run needs. As root, give them to another user."""
    shutil.copy(ROOT / "docker-compose.yml", tmp_path)
    (tmp_path / "results").mkdir()
    if os.geteuid() == 0:
        for path in (tmp_path, tmp_path / "results"):
            os.chown(path, OWNER, OWNER)
    return tmp_path


def machine() -> dict[str, object]:
    """Return everything that a container could leave behind."""
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
    # If the machine does not keep up, trials are repeated. The result contains all trials.
    assert len(result["trials"]) >= 2
    assert {trial["integrity"] for trial in result["trials"]} == {"ok"}
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


def test_the_image_has_the_compiled_core(compose: list[str], checkout: Path) -> None:
    out = said(*compose, "run", "--rm", "-T", "lab", "mrclab", "doctor", cwd=checkout)
    assert "MRC core: compiled" in out


@pytest.mark.parametrize("lab", ["2", "3"])
def test_a_lab_on_p4_in_the_container(compose: list[str], checkout: Path, lab: str) -> None:
    work = checkout / "class"
    work.mkdir()
    os.chown(work, checkout.stat().st_uid, checkout.stat().st_gid)
    steps = (
        f"mrclab lab start {lab} && mrclab lab solution {lab} && ! mrclab lab check {lab}"
        " && for s in *-solution; do python -m mrclab.labs.p4 $s && mrclab lab check {lab} $s; done"
    )
    words = ["-v", f"{work}:/class", "-w", "/class", "shell", "sh", "-ec", steps.replace("{lab}", lab)]
    out = said(*compose, "run", "--rm", "-T", *words, cwd=checkout)
    skeleton, solution = out.split("checked is switch.p4, compiled now")
    assert "hint  " in skeleton
    assert "hint  " not in solution
    assert re.search(r"All \d+ checks pass", solution)
    for path in work.rglob("*"):
        if "__pycache__" not in path.parts:
            assert path.stat().st_uid == checkout.stat().st_uid, path


def test_the_live_page_is_published_on_loopback(compose: list[str], checkout: Path) -> None:
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 8047)) == 0:
            pytest.skip("something listens on port 8047")
    before = machine()["containers"]
    environment = {"COMPOSE_PROJECT_NAME": PROJECT, "ARGS": "--topology tiny"}
    with subprocess.Popen(
        [*compose, "run", "--rm", "-T", "--service-ports", "live"],
        cwd=checkout,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        try:
            address = next(line.split()[1] for line in running.stdout if line.startswith("open "))
            for name in ("127.0.0.1", "localhost"):
                browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
                with browser.open(address.replace("localhost", name), timeout=TIMEOUT_S) as page:
                    assert b"mrclab" in page.read()
        finally:
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=TIMEOUT_S)
    assert machine()["containers"] == before
