"""A frame on its way through the switch."""

from __future__ import annotations

from dataclasses import dataclass, field

from mrclab.switches.v1model.expressions import (
    FieldRef,
)

DROP = 511
# Values of standard_metadata.instance_type.
INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATION, RESUBMITTED = 1, 2, 4, 5, 6
STANDARD = "standard_metadata"


class AssertionFailedError(Exception):
    """An assertion has failed; the frame is lost."""


class ParserError(Exception):
    """A frame that the parser gives up, with the code of P4's error."""

    def __init__(self, code: int) -> None:
        self.code = code


@dataclass
class FrameState:
    """One frame on its way."""

    frame: bytes
    fields: dict[FieldRef, int] = field(default_factory=dict)
    valid: dict[str, bool] = field(default_factory=dict)
    offset: int = 0
    received: int = 0  # bytes when it came in
    length: int = 0  # what packet_length will be in egress
    cut: int | None = None  # what truncate() leaves of the frame
    exited: bool = False
    extracted: dict[str, int] = field(default_factory=dict)  # elements of each stack, up to the next one
    varbits: dict[FieldRef, bytes] = field(default_factory=dict)
    kind: int = 0  # why it starts again: an instance type, 0 for a frame that came in
    rounds: int = 0  # how often it has started again
    session: int = 0  # where a clone goes
    kept: dict[FieldRef, int] = field(default_factory=dict)  # what an ingress clone has from its frame
    clone: tuple[int, int] | None = None  # the session and the field list that were asked for
    resubmit: int = 0  # the field list of the request
    recirculate: int = 0
