"""Errors in the form that P4Runtime gives them (specification, section 12)."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from finsy.proto import p4r, rpc_status

Code = grpc.StatusCode

DETAILS_KEY = "grpc-status-details-bin"


class P4RuntimeError(Exception):
    """A request, or one update of it, that fails with a canonical code."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def number(code: grpc.StatusCode) -> int:
    """Return the number of a canonical code (google.rpc.Code)."""
    result: int = code.value[0]
    return result


def batch_status(errors: Sequence[P4RuntimeError | None], message: str = "Write failure") -> bytes:
    """Return the google.rpc.Status of a batch that failed in part: one p4.v1.Error for each part."""
    status = rpc_status.Status(code=number(Code.UNKNOWN), message=message)
    for error in errors:
        detail = p4r.Error()
        if error is not None:
            detail.canonical_code = number(error.code)
            detail.message = error.message
            detail.space = "simple_switch_ebpf"
        status.details.add().Pack(detail)
    return bytes(status.SerializeToString())
