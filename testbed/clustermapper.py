"""Run Clustermapper on a testbed: in this process, or in a separate process during an experiment.

The process is ``python -m mrclab.testbed.clustermapper EVENTS INTERVAL_NS PREFIX STATE_DIR PARENT``. It
appends events to a file as JSON lines and updates the denylist. It ends on SIGTERM or with its parent.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mrclab.hosts.clustermapper.denylist import Denylist
from mrclab.hosts.clustermapper.prober import Prober
from mrclab.linux import namespaces
from mrclab.testbed import state
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork

DENYLIST = "denylist.json"
INTERVAL_NS = 1_000_000

Say = Callable[[Mapping[str, Any]], None]


def denylist_file(names: Names) -> Path:
    """Return the path of the testbed's denylist, which hosts load."""
    return names.state_dir / DENYLIST


def probe(names: Names, say: Say, stop: Callable[[], bool], interval_ns: int = INTERVAL_NS) -> None:
    """Probe the running testbed until ``stop()`` returns True. Raise InputError if no testbed is up.

    During this call the denylist file exists. The file is written again with every new verdict.
    """
    fabric = state.require(names).fabric()
    path = denylist_file(names)

    def heard(event: Mapping[str, Any]) -> None:
        if event["event"] in ("verdict", "cleared", "probing"):
            verdicts = prober.mapper.verdicts.values()
            Denylist.of(fabric, verdicts, event["t_ns"]).save(path)
        say(event)

    prober = Prober(fabric, lambda host: namespaces.inside(names.host(host)), heard, interval_ns=interval_ns)
    try:
        prober.run(stop)
    finally:
        prober.close()
        path.unlink(missing_ok=True)


class ClustermapperProcess:
    """Clustermapper in a separate process, for an experiment. Leaving the ``with`` ends the process.

    ``events()`` returns Clustermapper's events so far.
    """

    def __init__(self, network: FabricNetwork, path: Path, interval_ns: int = INTERVAL_NS) -> None:
        self._network = network
        self._path = path
        self._interval_ns = interval_ns
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._path.touch()
        names = self._network.names
        command = [sys.executable, "-m", "mrclab.testbed.clustermapper", str(self._path.resolve())]
        command += [str(self._interval_ns), names.prefix, str(names.state_dir), str(os.getpid())]
        self._process = self._network.spawn_in_fabric(command, stdin=subprocess.DEVNULL)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def require_alive(self) -> None:
        """Raise RuntimeError if the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"clustermapper ended with code {self._process.returncode}")

    def events(self) -> list[dict[str, Any]]:
        """Return every event so far, without an incomplete last line.

        Raise RuntimeError if the process ended.
        """
        self.require_alive()
        text = self._path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def main() -> None:
    """Run Clustermapper as a separate process."""
    path, interval_ns, prefix, directory, parent = sys.argv[1:]
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _frame: ended.append(number))
    with open(path, "a", buffering=1, encoding="utf-8") as log:
        probe(
            Names(prefix, Path(directory)),
            lambda event: print(json.dumps(event), file=log),
            lambda: bool(ended) or os.getppid() != int(parent),
            int(interval_ns),
        )


if __name__ == "__main__":
    main()
