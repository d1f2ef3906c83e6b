"""A NIC service that does not become ready after its start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from mrclab.linux.errors import MrclabError
from mrclab.testbed.network import FabricNetwork
from mrclab.testbed.programs import nic
from mrclab.topologies import load_fabric

SLOW = "import os, time\nif os.fork():\n    os._exit(0)\ntime.sleep(1000)"
"""A program that continues in a child process, as the service does."""


class Network:
    """A fake fabric. On its hosts, a program of the test runs instead of the NIC service."""

    def __init__(self, program: str, held: int) -> None:
        self.fabric = load_fabric("tiny")
        self._program, self._held = program, held

    def spawn(self, _host: str, _argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-S", "-c", self._program]
        return subprocess.Popen(argv, start_new_session=True, pass_fds=[self._held], **options)


@pytest.mark.parametrize("program", [SLOW, "print('other')"])
def test_a_service_that_is_not_ready_in_time_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """If the service were not ended, it would later take the socket of the next service."""
    monkeypatch.setattr(nic, "START_S", 0.5)
    reads, held = os.pipe()
    network = cast("FabricNetwork", Network(program, held))
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(MrclabError, match="did not start"):
        nic._start(network, "h0", tmp_path / "h0.sock", 30.0, {}, tmp_path / "h0.jsonl")
    os.close(held)
    assert os.read(reads, 1) == b""  # no process has the other end of the pipe
    os.close(reads)
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority
