"""Start and use the NIC service of a host. The first program that needs the service starts it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from mrclab.hosts.service.shared_memory import op, record
from mrclab.hosts.transports.table import SLOW_LINKS_TIMES
from mrclab.linux import processes
from mrclab.linux.errors import MrclabError
from mrclab.linux.scheduling import ahead_of_ordinary
from mrclab.testbed import state
from mrclab.testbed.names import Names
from mrclab.testbed.network import FabricNetwork
from mrclab.topologies import fabric_text

START_S = 180.0
"""The time limit, s, of a start. A start needs much less time, even if programs poll on every CPU."""
_CREDENTIALS = struct.Struct("=iII")
LINGER_S = 30.0
OPTIONS: Mapping[str, Any] = {"congestion": "fixed", "path_policy": "rotation", "exponential_retries": 12}
"""MRC's options, also for `mrclab perf`. The window is fixed, so only the software's speed limits the rate. A
dead peer is reported only after 4 s, so a busy machine or a second without a path breaks no queue pair."""
BMV2_OPTIONS: Mapping[str, Any] = {
    **OPTIONS,
    **SLOW_LINKS_TIMES,
    "cwnd_bytes": 16 * 4096,
    "min_reorder_ns": 25_000_000,
    "max_reorder_ns": 250_000_000,
    "endpoint_timeout_ns": 250_000_000,
    "exponential_retries": 5,
}
"""Options for BMv2. In BMv2, a frame waits for a CPU for a millisecond or much longer. A small window
keeps this wait short. The reordering window is longer than the wait, so that no working path is retired. A
dead peer is reported after the same time as with `OPTIONS`."""


def usual_options(target: str) -> Mapping[str, Any]:
    """Return the MRC options of a NIC service for the target of the switches."""
    return BMV2_OPTIONS if target == "bmv2" else OPTIONS


def directory(names: Names) -> Path:
    """Return the directory with the sockets of the NIC services."""
    return state.work_dir(names) / "nic"


def log_file(names: Names, host: str) -> Path:
    """Return the file in which a host's service logs the events of its NIC."""
    return Path("/var/log") / names.prefix / f"nic-{host}.jsonl"


def provide(
    network: FabricNetwork,
    host: str,
    linger_s: float = LINGER_S,
    *,
    options: Mapping[str, Any] | None = None,
    log: Path | None = None,
) -> Path:
    """Return the socket of a host's NIC service. Start the service if it does not run.

    Raise MrclabError if the start fails. A new service has the MRC ``options`` or, by default, the usual
    options of the target. It logs to ``log`` or, by default, to `log_file`.
    """
    names = network.names
    state.work_dir(names).mkdir(mode=0o711, parents=True, exist_ok=True)
    folder = directory(names)
    folder.mkdir(mode=0o711, exist_ok=True)
    path = folder / f"{host}.sock"
    with open(folder / f"{host}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not _answers(path):
            chosen = usual_options(network.target) if options is None else options
            _start(network, host, path, linger_s, chosen, log or log_file(names, host))
    return path


def _answers(path: Path) -> bool:
    """Return True if a service accepts a connection. Each connection restarts the service's linger time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as attempt, suppress(OSError):
        attempt.connect(str(path))
        return True
    return False


def _start(
    network: FabricNetwork, host: str, path: Path, linger_s: float, options: Mapping[str, Any], log: Path
) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "fabric": fabric_text(network.fabric),
        "host": host,
        "socket": str(path),
        "log": str(log),
        "options": dict(options),
        "linger_s": linger_s,
    }
    with open(log.with_suffix(".err"), "ab") as errors, ahead_of_ordinary():
        service = network.spawn(
            host,
            [sys.executable, "-m", "mrclab.hosts.service"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd="/",
        )
    assert service.stdin is not None
    assert service.stdout is not None
    with service.stdin as stdin, service.stdout as stdout:
        with suppress(BrokenPipeError):
            stdin.write(json.dumps(settings).encode() + b"\n")
            stdin.flush()
        readable, _, _ = select.select([stdout], [], [], START_S)
        ready = bool(readable) and stdout.readline() == b"ready\n"
        if not ready:  # otherwise this service could start late and replace the next service
            with suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGKILL)
        service.wait()  # the started process ends now, because the service runs in its child
    if not ready:
        raise MrclabError(f"the NIC service of {host} did not start: see {errors.name}")


def allow(path: Path, uid: int) -> None:
    """Allow programs of another user to use a service. Raise OSError if the service does not answer."""
    if uid == os.geteuid():
        return
    with _asked(path, "ALLOW", uid):
        pass


@contextmanager
def recorded(path: Path, fd: int) -> Iterator[None]:
    """Let a service write the requests of programs to an open file. After the ``with``, the file is complete.

    Raise OSError if the service does not answer.
    """
    with _asked(path, "RECORD", fds=(fd,)) as connection:
        yield
        with suppress(OSError):  # the service may have ended
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)  # returns when the service has written everything


@contextmanager
def _asked(path: Path, name: str, number: int = 0, fds: tuple[int, ...] = ()) -> Iterator[socket.socket]:
    """Send a request to a service. Yield the connection after the answer. Raise OSError on failure."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(START_S)
        connection.connect(str(path))
        request = record("request").pack(op(name), 0, number, *[0] * 7, b"")
        socket.send_fds(connection, [request], fds)
        if not connection.recv(record("reply").size):
            raise OSError(f"{path}: the NIC service has ended")
        yield connection


def process_of(path: Path) -> processes.Process | None:
    """Return the process of a service; None if no service listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection, suppress(OSError):
        connection.connect(str(path))
        pid, _, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        return processes.Process.of(pid)
    return None


def end(path: Path) -> None:
    """End a host's service, if it runs, and wait until its event log is complete."""
    if (service := process_of(path)) is not None:
        processes.end([service], START_S)
