"""Counters that both transports show: dropped frames by cause, and what became of packets path by path."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum


class EvState(IntEnum):
    """State of an entropy value (EV), and so of a path; values up to GOOD may be sent on.

    MRC moves its EVs through these states [SPEC Fig 5]. RoCEv2 never gives up a path: its paths are GOOD.
    """

    UNKNOWN = 0
    GOOD = 1
    SKIP = 2
    ASSUMED_BAD = 3
    DENIED = 4


@dataclass(slots=True)
class Drops:
    """Frames that came in and were dropped, by cause."""

    too_short: int = 0
    not_mrc: int = 0
    """Not a frame of this transport: other headers, or another UDP port."""
    bad_length: int = 0
    bad_icrc: int = 0
    wrong_port: int = 0
    """Inner destination is not the address of the port it came in on, or the port is down."""
    unknown_qp: int = 0
    wrong_source: int = 0
    unknown_opcode: int = 0
    malformed: int = 0
    """Headers do not fit the packet."""
    contradictory: int = 0
    """A port status that denies the port it came in on."""

    def total(self) -> int:
        """Return the sum over all causes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class EvCounters:
    """A snapshot of one EV. Packets unless the name says otherwise."""

    ev: int
    plane: int
    state: EvState
    active: bool
    sent: int
    acked: int
    lost: int
    ecn_marked: int
    trimmed: int
    retired: int
    """Times it left the rotation."""
