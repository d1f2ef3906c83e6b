"""The serving end of a control socket: a JSON object per line each way."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Mapping
from typing import Any

LOGGER = logging.getLogger(__name__)

Answer = dict[str, Any] | None


def carry_out(line: bytes, operation: Callable[[Mapping[str, Any]], Answer]) -> Answer:
    """What to reply to a command: the operation's answer (None: later), or the error it raised."""
    try:
        return operation(json.loads(line))
    except Exception as error:
        LOGGER.exception("command failed: %s", line)
        return {"error": f"{type(error).__name__}: {error}"}


def reply(control: socket.socket, answer: Answer) -> None:
    """Sends an answer, where there is one already."""
    if answer is not None:
        control.sendall(json.dumps(answer).encode() + b"\n")
