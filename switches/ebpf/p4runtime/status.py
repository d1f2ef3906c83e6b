"""Errors in the form that P4Runtime gives them (specification, section 12)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from finsy.proto import p4r, rpc_status

Code = grpc.StatusCode

DETAILS_KEY = "grpc-status-details-bin"
MOST_CHARACTERS = 1000
"""Of an error's message: it may quote a client's bytes, and gRPC takes 16 kB of metadata with it."""
MOST_DETAILS_BYTES = 6000
"""Of a batch's details, which travel in the same metadata, as a third more in base64."""


class P4RuntimeError(Exception):
    """A request, or one update of it, that fails with a canonical code."""

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
    """Return the google.rpc.Status of a batch that failed in part: one p4.v1.Error for each part.

    If that is too much for a reply's metadata, the messages of the parts are shortened, and dropped for very
    many parts: with an empty reply a client could not even see which part failed first.
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
