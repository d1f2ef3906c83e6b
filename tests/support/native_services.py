"""NIC services for programs in C without a fabric: this process has two NICs and carries their frames."""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mrclab.hosts.service.session import Session, SessionOverError
from mrclab.hosts.service.shared_memory import RingError, fence
from tests.support.nic_client import Nic, Wire

LOOK_S = 0.001
TIMEOUT_S = 120


class Services:
    """The NIC services of two hosts, in a thread. Programs of the hosts run as processes of this machine."""

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / "h0.sock", folder / "h2.sock"]
        self._wire = Wire()
        self._nics = self._wire.a, self._wire.b
        self._listeners = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in self.paths]
        for listener, path in zip(self._listeners, self.paths, strict=True):
            listener.bind(str(path))
            listener.listen(8)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        """End both services."""
        self._over.set()
        self._thread.join()
        for listener in self._listeners:
            listener.close()
        self._wire.close()

    def objects(self) -> tuple[int, int]:
        """Return the number of queue pairs and the number of regions of both NICs together."""
        ends = [nic.endpoint for nic in self._nics]
        return sum(len(end.qps) for end in ends), sum(len(end.memory.regions) for end in ends)

    def _work(self) -> None:
        while not self._over.is_set():
            readable, _, _ = select.select(self._listeners, [], [], LOOK_S)
            for listener, nic in zip(self._listeners, self._nics, strict=True):
                if listener in readable:
                    self._accept(listener, nic)
                for session in list(nic.sessions):
                    session.set_asleep(0)
                    self._serve(nic, session)
            self._wire.run(5)
            fence()
            for nic in self._nics:
                for session in nic.sessions:
                    session.notify()

    def _accept(self, listener: socket.socket, nic: Nic) -> None:
        connection, _ = listener.accept()
        connection.setblocking(False)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("=iII", credentials)
        nic.sessions.append(
            Session(connection, pid, nic.endpoint, nic.fabric, nic.host, nic.control, nic.recordings)
        )

    def _serve(self, nic: Nic, session: Session) -> None:
        try:
            session.serve()
            session.take()
        except (SessionOverError, RingError):
            nic.sessions.remove(session)
            session.close()


@contextmanager
def running(
    nic: Path, libraries: Path, *words: str | Path, preload: str, variables: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Run a program with the libraries in a folder and the NIC behind this socket."""
    environment = {
        "LD_PRELOAD": preload,
        "LD_LIBRARY_PATH": str(libraries),
        "MRCLAB_NIC": str(nic),
        **(variables or {}),
    }
    with subprocess.Popen(
        [str(word) for word in words],
        env=os.environ | environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port() -> str:
    """Return a TCP port of the loopback that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def await_listener(port: int, process: subprocess.Popen[str]) -> bool:
    """Wait until a program listens at a port of this machine. Return False if the program ends first."""
    deadline = time.monotonic() + TIMEOUT_S
    argv = ["ss", "-Hltn", f"sport = :{port}"]
    while not subprocess.run(argv, capture_output=True, check=True).stdout:
        if process.poll() is not None:
            return False
        assert time.monotonic() < deadline, "it does not listen"
        time.sleep(0.05)
    return True
