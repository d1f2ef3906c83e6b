"""How ``mrclab`` talks to a running testbed: one JSON object each way over a socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from linux.errors import InputError, MachineError
from testbed import state
from testbed.names import Names

TIMEOUT_S = 60.0


def control_socket(names: Names) -> Path:
    """Where the testbed's daemon listens."""
    return names.state_dir / "control.sock"


def ask(names: Names, request: Mapping[str, Any]) -> dict[str, Any]:
    """Sends a request to the testbed that is up and returns its answer.

    Raises InputError where none is up, and with the daemon's words where it refuses, MachineError where
    the machine lacks something.
    """
    state.require(names)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(control_socket(names)))
        except OSError:
            raise InputError("this testbed belongs to a running experiment, not to 'mrclab up'") from None
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            answer: dict[str, Any] = json.loads(lines.readline())
    if "refused" in answer:
        raise InputError(str(answer["refused"]))
    if "lacks" in answer:
        raise MachineError(str(answer["lacks"]))
    if "failed" in answer:
        raise RuntimeError(str(answer["failed"]))
    return answer
