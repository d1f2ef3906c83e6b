"""Send a request to a running testbed over its control socket (see `mrclab.linux.requests`)."""

from __future__ import annotations

import json
import socket
from typing import Any

from mrclab.linux.errors import InputError
from mrclab.linux.requests import ANSWER_BYTES, accepted, encode, read_line
from mrclab.testbed import ownership, state
from mrclab.testbed.names import Names

TIMEOUT_S = 60.0


def call(names: Names, do: str, **arguments: Any) -> dict[str, Any]:
    """Send a request to the running testbed and return its answer.

    Raise InputError if no testbed is up or the testbed refuses the request. Raise MachineError if the machine
    lacks something that the request needs, and RequestFailedError if the request fails in the testbed.
    """
    found = state.require(names)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(str(state.control_socket(names)))
        except OSError:
            raise InputError(f"{ownership.whose(found)}, which takes no commands") from None
        connection.sendall(encode({"do": do, **arguments}))
        with connection.makefile("rb") as lines:
            line = read_line(lines, ANSWER_BYTES)
    return accepted(json.loads(line))
