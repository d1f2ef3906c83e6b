"""A running testbed for a module's tests, brought up as a person would, under a prefix of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from testbed.names import PREFIX_VARIABLE, Names
from topologies import Fabric, load_fabric

TIMEOUT_S = 120


@dataclass(frozen=True)
class Mrclab:
    """The command line, in a prefix that no other testbed has."""

    names: Names

    def __call__(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            **options,
        )

    @staticmethod
    def command(*words: str) -> list[str]:
        return [sys.executable, "-m", "mrclab", *words]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, PREFIX_VARIABLE: self.names.prefix}

    def ok(self, *words: str) -> str:
        done = self(*words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.ok("status", "--json"))
        return answer


@pytest.fixture
def mrclab() -> Iterator[Mrclab]:
    """The command line with nothing up; whatever a test leaves is removed."""
    runner = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        yield runner
    finally:
        runner("clean")


@dataclass(frozen=True)
class Up:
    mrclab: Mrclab
    fabric: Fabric

    def switch_namespace(self) -> str:
        return self.mrclab.names.fabric

    def host_namespace(self, host: str) -> str:
        return self.mrclab.names.host(host)


@pytest.fixture(scope="module")
def tiny() -> Iterator[Up]:
    """The topology `tiny`, up on the ebpf target."""
    runner = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        runner.ok("up", "--topology", "tiny", "--target", "ebpf")
        yield Up(runner, load_fabric("tiny"))
        runner.ok("down")
    finally:
        runner("clean")


@pytest.fixture
def machine() -> Iterator[None]:
    """Checks that a test leaves the machine's namespaces, interfaces and processes as they were."""
    before = snapshot()
    yield
    assert snapshot() == before


def snapshot() -> dict[str, object]:
    def out(*command: str) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    marked = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"MRCLAB_RUN=" in environ.read_bytes():
                marked.append(environ.parent.name)
        except OSError:
            continue
    return {
        "netns": out("ip", "netns"),
        "links": sorted(line.split(":")[1] for line in out("ip", "-o", "link").splitlines()),
        "qdiscs": out("tc", "qdisc"),
        "marked processes": sorted(marked),
    }
