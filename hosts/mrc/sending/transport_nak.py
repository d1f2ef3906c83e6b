"""What an AETH says: acknowledged, or how a write failed [SPEC §6.2.2, IBTA 9.7.5.2]."""

from __future__ import annotations

from typing import Final

from mrclab.hosts.rdma.events import Status

_INVALID_REQUEST: Final = 0x61


def is_ack(syndrome: int) -> bool:
    """Return whether a syndrome acknowledges; its credits do not matter."""
    return syndrome >> 5 & 3 == 0


def nak_status(syndrome: int) -> Status | None:
    """Return how a write ends that is answered with this syndrome; None if it is no NAK.

    MRC has no NAK that requests a wait or a repetition, so every NAK is final.
    """
    if syndrome >> 5 & 3 != 3:
        return None
    if syndrome == _INVALID_REQUEST:
        return Status.REMOTE_INVALID_REQUEST_ERROR
    return Status.REMOTE_OPERATION_ERROR
