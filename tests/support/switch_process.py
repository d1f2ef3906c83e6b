"""A switch of the ebpf target without interfaces, for tests of the control plane."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 300.0


_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(range(20_000 + 100 * _WORKER, 20_100 + 100 * _WORKER))


def free_port() -> int:
    """Return a TCP port of the loopback that neither another test nor the kernel will use."""
    for port in itertools.islice(_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


@contextmanager
def switch_process(port: int) -> Iterator["subprocess.Popen[str]"]:
    """Start a switch without interfaces, which is enough for the control plane."""
    command = [sys.executable, "-m", "mrclab.switches.ebpf.main", "--no-p4", "--device-id", "1", "--"]
    process = subprocess.Popen(
        [*command, "--grpc-server-addr", f"127.0.0.1:{port}"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("READY")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
