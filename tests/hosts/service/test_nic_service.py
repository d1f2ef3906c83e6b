"""The loop of a NIC service: connections that begin and end at the same time, and too few descriptors."""

from __future__ import annotations

import os
import resource
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from mrclab.hosts.nic.device import Device
from mrclab.hosts.service.nic_service import NicService
from mrclab.topologies import load_fabric
from tests.support.nic_client import Client, Nic

HOLDER = """
import os, socket, sys
from tests.support.nic_client import Client
sys.stdin.readline()
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
Client(connection)
print("ready", flush=True)
sys.stdin.readline()
connection.close()
print("closed", flush=True)
sys.stdin.readline()
"""


class EndError(Exception):
    """The test ends the service."""


class QuietDevice:
    """A NIC without ports. Between `pause` and `go_on`, the service stays in its turn."""

    def __init__(self) -> None:
        self._may_run = threading.Event()
        self._paused = threading.Event()
        self._over = False
        self._may_run.set()

    def now(self) -> int:
        return time.monotonic_ns()

    def turn(self, until_ns: int | None, others: Collection[int]) -> Collection[int]:
        if not self._may_run.is_set():
            self._paused.set()
            self._may_run.wait()
        if self._over:
            raise EndError
        return select.select(others, [], [], 0.001)[0]

    def events(self) -> list[Any]:
        return []

    def pause(self) -> None:
        self._paused.clear()
        self._may_run.clear()
        assert self._paused.wait(10)

    def go_on(self) -> None:
        self._may_run.set()

    def end(self) -> None:
        self._over = True
        self.go_on()


class Running:
    """A NIC service in a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.device = QuietDevice()
        self.nic = Nic(load_fabric("tiny"), "h0")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen(8)
        self._listener.setblocking(False)
        self.service = NicService(
            cast(Device, self.device), self.nic.endpoint, self.nic.fabric, "h0", self._listener
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with suppress(EndError):
            self.service.run()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(10)
        connection.connect(str(self.path))
        return connection

    def close(self) -> None:
        self.device.end()
        self.thread.join(10)
        self._listener.close()


@pytest.fixture
def running() -> Iterator[Running]:
    with tempfile.TemporaryDirectory() as name:
        made = Running(Path(name) / "nic.sock")
        yield made
        made.close()


def test_the_end_of_a_program_does_not_end_a_session_that_begins_at_the_same_time(running: Running) -> None:
    """The new session gets the old session's descriptors, and the old program's end is reported last."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, running.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        fillers = [os.dup(0) for _ in range(20)]  # so that the service's new descriptors are consecutive
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "ready\n"
        running.device.pause()
        holder.stdin.write("\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "closed\n"
        connection = running.connect()
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.wait(10)
        running.device.go_on()
        Client(connection).make_qp()
    for fd in (*fillers, connection.detach()):
        os.close(fd)


@pytest.mark.parametrize("left", range(6))
def test_too_few_descriptors_refuse_a_program_and_nothing_else(running: Running, left: int) -> None:
    """A program can use up the descriptors, with channels for example."""
    running.device.pause()
    connection = running.connect()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(int(name) for name in os.listdir("/proc/self/fd")) + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(left):
            os.close(taken.pop())
        before = set(os.listdir("/proc/self/fd")) if left else set()
        running.device.go_on()
        connection.settimeout(10 if left else 0.5)
        with suppress(TimeoutError):
            assert connection.recv(1) == b""
        connection.close()
        assert running.thread.is_alive()
        assert not left or set(os.listdir("/proc/self/fd")) <= before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
    Client(running.connect()).make_qp()
