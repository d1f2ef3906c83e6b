"""Error reports in P4Runtime's format (specification, section 12)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from finsy.proto import p4r, rpc_status

Code = grpc.StatusCode

DETAILS_KEY = "grpc-status-details-bin"
MOST_CHARACTERS = 1000
"""Maximum length of an error's message. The message is sent as gRPC metadata, which may have 16 kB."""
MOST_DETAILS_BYTES = 6000
"""Maximum size of a batch's error details. They are sent as gRPC metadata, where base64 adds a third."""


class P4RuntimeError(Exception):
    """A request or one of its updates failed. `code` is the canonical gRPC status code."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        if len(message) > MOST_CHARACTERS:
            message = f"{message[:MOST_CHARACTERS]}... ({len(message)} characters)"
        super().__init__(message)
        self.code = code
        self.message = message


def number(code: grpc.StatusCode) -> int:
    """Return the number of a canonical code (google.rpc.Code)."""
    result: int = code.value[0]
    return result


def batch_status(errors: Sequence[P4RuntimeError | None], message: str = "Write failure") -> bytes:
    """Return the google.rpc.Status of a batch with failures: one p4.v1.Error for each update or entity.

    If the status is too large for a reply's metadata, the messages are shortened or left out. If it is still
    too large, the status has no details, only `message`.
    """
    for characters in (MOST_CHARACTERS, 100, 0):
        status = bytes(_status(errors, message, characters).SerializeToString())
        if len(status) <= MOST_DETAILS_BYTES:
            return status
    return bytes(_status((), message, 0).SerializeToString())


def _status(errors: Sequence[P4RuntimeError | None], message: str, characters: int) -> rpc_status.Status:
    status = rpc_status.Status(code=number(Code.UNKNOWN), message=message)
    for error in errors:
        detail = p4r.Error()
        if error is not None:
            detail.canonical_code = number(error.code)
            detail.message = error.message[:characters]
            detail.space = "simple_switch_ebpf"
        status.details.add().Pack(detail)
    return status
