"""Wait until P4Runtime servers answer.

`python -m mrclab.switches.readiness TIMEOUT HOST:PORT...` waits in a separate process, which can run inside
another network namespace. If a server does not answer, the process prints the address and exits with 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import grpc
from finsy.proto import p4r, p4r_grpc

from mrclab.linux.errors import SwitchError


def wait_ready(addresses: Sequence[str], timeout: float) -> None:
    """Return when every address has answered a Capabilities call. After `timeout` s, raise SwitchError."""
    deadline = time.monotonic() + timeout
    # After a refused connection gRPC waits 1 s by default. A switch starts faster, so retry after 50 ms.
    options = [
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    channels = [grpc.insecure_channel(a, options=options) for a in addresses]
    try:
        for address, channel in zip(addresses, channels, strict=True):
            left = max(0.0, deadline - time.monotonic())
            try:
                p4r_grpc.P4RuntimeStub(channel).Capabilities(
                    p4r.CapabilitiesRequest(), wait_for_ready=True, timeout=left
                )
            except grpc.RpcError as exc:
                raise SwitchError(f"no P4Runtime answer from {address} within {timeout:g} s") from exc
    finally:
        for channel in channels:
            channel.close()


def main() -> int:
    """Wait until the servers at the addresses of the command line answer. Return the exit code."""
    try:
        wait_ready(sys.argv[2:], float(sys.argv[1]))
    except SwitchError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
