"""Requests and answers between processes, in order, as one JSON object per line over a stream socket.

The key ``do`` of a request names its operation; the other keys are the arguments. If an answer has the key
``error``, the request failed: ``error`` is the reason as text, and ``kind`` is one of

    input     the request cannot be carried out as it is (`InputError`)
    machine   the machine lacks something (`MachineError`)
    failed    anything else
"""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mrclab.linux.errors import BadInputError, InputError, MachineError, MrclabError, reason

LOGGER = logging.getLogger(__name__)
REQUEST_BYTES = 16 << 20
"""The longest request that a server reads. It is large enough for a topology."""
ANSWER_BYTES = 1 << 30
"""The longest answer that a client reads. It is large enough for the samples of a long measurement."""
_LOGGED_BYTES = 200

Request = Mapping[str, Any]
AnswerT = TypeVar("AnswerT", bound="dict[str, Any] | None")


class TooLongError(ValueError):
    """A line is longer than its reader accepts, so the rest of the stream cannot be used."""


class RequestFailedError(MrclabError, RuntimeError):
    """The process that received a request could not carry it out."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a request or an answer encoded as a line."""
    return json.dumps(message).encode() + b"\n"


def read_line(lines: io.IOBase, limit: int) -> bytes:
    """Return the next line, or b"" at the end. Raise TooLongError for a line of more than ``limit`` bytes."""
    line = lines.readline(limit + 1)
    if len(line) > limit:
        raise TooLongError(f"a line of more than {limit} bytes")
    return line


def carry_out(
    line: bytes, operations: Mapping[str, Callable[[Request], AnswerT]]
) -> AnswerT | dict[str, Any]:
    """Parse a request, call its operation and return the answer, or the error that was raised."""
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
    return {"error": reason(error), "kind": "failed"}


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that reports no error; raise the error that it reports otherwise.

    The error is an InputError, a MachineError, or a RequestFailedError for any other error.
    """
    if "error" not in answer:
        return answer
    kinds: dict[str, type[Exception]] = {"input": InputError, "machine": MachineError}
    raise kinds.get(answer.get("kind", ""), RequestFailedError)(answer["error"])
