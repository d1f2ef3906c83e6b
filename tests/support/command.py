"""The command line as a user runs it, and a fabric that it brought up, under a separate prefix."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrclab.testbed.names import PREFIX_VARIABLE, Names
from mrclab.topologies import Fabric, load_fabric

TIMEOUT_S = 120


@dataclass(frozen=True)
class Mrclab:
    """The command line, with a prefix that no other testbed uses."""

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


@dataclass(frozen=True)
class Up:
    mrclab: Mrclab
    fabric: Fabric

    def switch_namespace(self) -> str:
        return self.mrclab.names.fabric

    def host_namespace(self, host: str) -> str:
        return self.mrclab.names.host(host)


@contextmanager
def up(topology: str, target: str) -> Iterator[Up]:
    """Bring up a topology on a target under a separate prefix. At the end, remove everything."""
    runner = Mrclab(Names.of_prefix(f"t{os.urandom(3).hex()}"))
    try:
        runner.ok("up", "--topology", topology, "--target", target)
        yield Up(runner, load_fabric(topology))
        runner.ok("down")
    finally:
        runner("clean")


def snapshot(names: Names) -> dict[str, object]:
    """Return this testbed's namespaces and processes, and all links and queues of this namespace.

    Leave out other testbeds, which may run at the same time.
    """

    def lines(*command: str) -> list[str]:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return sorted(done.stdout.splitlines())

    ours = f"MRCLAB_RUN={names.prefix}.".encode()
    processes = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if ours in environ.read_bytes():
                processes.append(environ.parent.name)
        except OSError:
            continue
    return {
        "netns": [line for line in lines("ip", "netns") if line.startswith(names.prefix)],
        "links": [line.split(":")[1] for line in lines("ip", "-o", "link")],
        "qdiscs": lines("tc", "qdisc"),
        "processes": processes,
        "state": names.state_dir.exists(),
    }
