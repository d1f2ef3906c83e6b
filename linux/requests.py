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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from mrclab.linux.errors import BadInputError, InputError, MachineError, MrclabError, reason

LOGGER = logging.getLogger(__name__)
REQUEST_BYTES = 16 << 20
"""The longest request that a server reads. It must have room for a topology."""
ANSWER_BYTES = 1 << 30
"""The longest answer that a client reads. It must have room for the samples of a long measurement."""
_LOGGED_BYTES = 200

Request = Mapping[str, Any]
AnswerT = TypeVar("AnswerT", bound="dict[str, Any] | None")


class TooLongError(ValueError):
    """A line is longer than its reader accepts. The rest of the stream cannot be used."""


class RequestFailedError(MrclabError, RuntimeError):
    """The other side failed at a request."""


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a request or an answer as a line."""
    return json.dumps(message).encode() + b"\n"


def read_line(lines: io.IOBase, limit: int) -> bytes:
    """Return the next line, empty at the end of the stream. Raise TooLongError above ``limit`` bytes."""
    line = lines.readline(limit + 1)
    if len(line) > limit:
        raise TooLongError(f"a line of more than {limit} bytes")
    return line


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
    return {"error": reason(error), "kind": "failed"}


def accepted(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that is no refusal.

    Raise the error of a refusal: InputError, MachineError, or RequestFailedError for any other error.
    """
    if "error" not in answer:
        return answer
    kinds: dict[str, type[Exception]] = {"input": InputError, "machine": MachineError}
    raise kinds.get(answer.get("kind", ""), RequestFailedError)(answer["error"])
