"""A switch of the ebpf target without interfaces, for tests of the control plane."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 30


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def switch_process(port: int) -> Iterator["subprocess.Popen[str]"]:
    """A switch without interfaces: all that the control plane needs."""
    command = [sys.executable, "-m", "switches.ebpf.main", "--no-p4", "--device-id", "1", "--"]
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
