"""The C libraries under sanitizers of addresses and undefined behaviour, over two NICs in this process."""

from __future__ import annotations

import os
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from mrclab.hosts.service.control import control
from mrclab.hosts.service.rings import fence
from mrclab.hosts.service.session import Session, SessionOverError
from mrclab.native.build import MRC, SOURCE, VERBS, build_into
from tests.support.nic_client import Nic, Wire
from tests.support.paths import ROOT

HEADER = Path("/usr/include/infiniband/verbs.h")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer")
SOURCES = ROOT / "tests" / "support" / "programs"
SIZE, COUNT = "20000", "100"
TIMEOUT_S = 60
LOOK_S = 0.001
FAULT = 86
"""The exit code of a program in which a sanitizer has found something."""


def _runtime() -> str | None:
    if shutil.which("gcc") is None or not HEADER.exists():
        return None
    argv = ["gcc", "-print-file-name=libasan.so"]
    found = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    return found if Path(found).is_absolute() else None


pytestmark = pytest.mark.skipif(
    _runtime() is None, reason="needs gcc with its sanitizers, and libibverbs-dev"
)


class Services:
    """The NIC services of two hosts, without a fabric: frames are carried by hand, in a thread."""

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
        self._over.set()
        self._thread.join()
        for listener in self._listeners:
            listener.close()
        self._wire.close()

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
        except SessionOverError:
            nic.sessions.remove(session)
            session.close()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_into(folder / "lib", FLAGS, hooks=False)
        libraries = folder / "lib"
        mrc = [f"-I{SOURCE}", f"-L{libraries}", f"-l:{MRC}", f"-Wl,-rpath-link,{libraries}", "-libverbs"]
        for program, source, options in (
            ("verbs", "pair", ["-libverbs"]),
            ("mrc", "pair", ["-DMRC", *mrc]),
            ("controller", "controller", mrc),
        ):
            argv = ["gcc", "-g", *FLAGS, "-o", folder / program, SOURCES / f"{source}.c", *options]
            subprocess.run(argv, check=True)
        yield folder


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Iterator[Services]:
    monkeypatch.setattr(control, "may_control", lambda _pid: True)
    with tempfile.TemporaryDirectory() as name:
        made = Services(Path(name))
        yield made
        made.close()


def _start(folder: Path, nic: Path, *words: str) -> subprocess.Popen[str]:
    libraries = folder / "lib"
    options = f"exitcode={FAULT}:abort_on_error=0:detect_leaks=0"
    environment = {
        "LD_PRELOAD": f"{_runtime()}:{libraries / VERBS}",
        "LD_LIBRARY_PATH": str(libraries),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": f"print_stacktrace=1:{options}",
        "MRCLAB_NIC": str(nic),
    }
    return subprocess.Popen(
        [str(folder / words[0]), *words[1:]],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


@pytest.mark.parametrize("api", ["verbs", "mrc"])
def test_a_pair_of_programs_is_clean(services: Services, folder: Path, api: str) -> None:
    here, there = services.paths
    port = _free_port()
    with (
        _start(folder, there, api, "server", port, SIZE, COUNT, "events") as server,
        _start(folder, here, api, "client", port, SIZE, COUNT, "127.0.0.1") as client,
    ):
        with suppress(subprocess.TimeoutExpired):
            client.wait(TIMEOUT_S)
            server.wait(TIMEOUT_S)
        client.kill()
        server.kill()
        said = {program: program.communicate()[0] for program in (server, client)}
    for program, words in said.items():
        assert program.returncode == 0, words
        assert f"ok {COUNT} messages" in words


def test_a_controller_is_clean(services: Services, folder: Path) -> None:
    with _start(folder, services.paths[0], "controller", "refuse") as program:
        said, _ = program.communicate(timeout=TIMEOUT_S)
    assert (program.returncode, said) == (0, "refused\n")
