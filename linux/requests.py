"""Requests and answers between processes: one JSON object per line each way over a stream socket, in order.

A request names its operation in ``do``; its other keys are the arguments. An answer that has the key
``error`` is a refusal: ``error`` is its text, ``kind`` is one of

    input     the request cannot be carried out as it is (`InputError`)
    machine   the machine lacks something (`MachineError`)
    failed    anything else
"""

from __future__ import annotations

import io
import json
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from linux.errors import BadInputError, InputError, MachineError

LOGGER = logging.getLogger(__name__)
REQUEST_BYTES = 16 << 20
"""The longest request that a server reads. It must have room for a topology."""
ANSWER_BYTES = 1 << 30
"""The longest answer that a client reads. It must have room for the samples of a long measurement."""
_LOGGED_BYTES = 200
_RECEIVE_BYTES = 1 << 16

Request = Mapping[str, Any]
AnswerT = TypeVar("AnswerT", bound="dict[str, Any] | None")


class TooLongError(ValueError):
    """A line is longer than its reader accepts. The rest of the stream cannot be used."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a request or an answer as a line."""
    return json.dumps(message).encode() + b"\n"


def read_line(lines: io.IOBase, limit: int) -> bytes:
    """Return the next line, empty at the end of the stream. Raise TooLongError above ``limit`` bytes."""
    line = lines.readline(limit + 1)
    if len(line) > limit:
        raise TooLongError(f"a line of more than {limit} bytes")
    return line


def receive_line(connection: socket.socket, limit: int, within_s: float) -> bytes:
    """Return the first line of a connection, empty if the peer sends none.

    Raise TimeoutError if the whole line is not here ``within_s`` seconds from now, however slowly its bytes
    arrive, and TooLongError above ``limit`` bytes.
    """
    deadline = time.monotonic() + within_s
    line = bytearray()
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no request in time")
        connection.settimeout(left)
        part = connection.recv(_RECEIVE_BYTES)
        if not part:
            return b""
        line += part
        if len(line) > limit:
            raise TooLongError(f"a line of more than {limit} bytes")
    return bytes(line)


def carry_out(
    line: bytes, operations: Mapping[str, Callable[[Request], AnswerT]]
) -> AnswerT | dict[str, Any]:
    """Parse a request, call its operation and return the operation's answer, or a refusal if it raises."""
    try:
        request = json.loads(line)
        operation = operations[request["do"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        return refusal(InputError(f"not a request: {line[:80]!r}"))
    try:
        return operation(request)
    except (InputError, BadInputError, MachineError) as error:
        return refusal(error)
    except Exception as error:
        LOGGER.exception("request failed: %r", line[:_LOGGED_BYTES])
        return refusal(error)


def refusal(error: Exception) -> dict[str, Any]:
    """Return the answer that reports an error."""
    if isinstance(error, InputError | BadInputError):
        return {"error": str(error), "kind": "input"}
    if isinstance(error, MachineError):
        return {"error": str(error), "kind": "machine"}
    return {"error": f"{type(error).__name__}: {error}", "kind": "failed"}


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that is no refusal.

    Raise what a refusal reports: InputError, MachineError, or RuntimeError for any other error.
    """
    if "error" not in answer:
        return answer
    kinds: dict[str, type[Exception]] = {"input": InputError, "machine": MachineError}
    raise kinds.get(answer.get("kind", ""), RuntimeError)(answer["error"])
