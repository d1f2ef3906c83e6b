"""What queue pairs of any transport report: events, one small class per kind, and counters.

Apart from completions no event happens per packet on an undisturbed path, so events cost nothing there.
`t_ns` is the time that the caller passed in when the event came about. Counters say how many frames were
dropped, by cause, and what became of packets path by path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, IntEnum


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


class Status(Enum):
    """How a work request ended."""

    SUCCESS = "success"
    REMOTE_ACCESS_ERROR = "remote access error"
    RETRY_EXCEEDED = "Retry Counter Exceeded"
    REMOTE_INVALID_REQUEST_ERROR = "remote invalid request error"
    """RoCEv2: packets of a message that do not fit one another. MRC: too many WRITE_IMMs in flight."""
    REMOTE_OPERATION_ERROR = "remote operation error"
    """The peer gave up for another reason; with MRC also if it was not allowed to write."""
    RNR_RETRY_EXCEEDED = "RNR Retry Counter Exceeded"
    """RoCEv2 only: no receive was posted for too long."""
    FLUSHED = "flushed"
    """The QP failed before this request was done."""


class LossReason(Enum):
    """How a packet was found to be lost."""

    GAP = "gap"
    """Packets sent well after it were acknowledged."""
    RETIRED = "retired EV"
    """A packet sent later was acknowledged, and the EV had been retired for a loss in between."""
    PROBE = "probe"
    """A tail probe sent well after it was answered."""
    TIMEOUT = "timeout"
    """The ACK timer ran out although packets of the peer arrived."""
    TRIMMED = "trimmed"
    TRIMMED_LASTHOP = "trimmed at the last hop"
    NACK = "nack"
    PORT_DOWN = "port down"


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    t_ns: int
    qpn: int


@dataclass(frozen=True, slots=True)
class SendCompleted(Event):
    """A posted write ended; in order of posting."""

    wr_id: int
    status: Status
    length_bytes: int


@dataclass(frozen=True, slots=True)
class ReceiveCompleted(Event):
    """A WRITE_IMM message arrived whole; in order of RQMSN. Or a posted receive was flushed."""

    imm: int
    length_bytes: int
    rqmsn: int
    wr_id: int | None = None
    """Of the receive that it consumed; None if no receive has to be posted."""
    status: Status = Status.SUCCESS
    """`FLUSHED` for a receive that was left when the queue pair failed; it has no message."""


@dataclass(frozen=True, slots=True)
class QpError(Event):
    """The QP went to its error state; its open requests complete as flushed."""

    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class PacketLost(Event):
    """A packet counts as lost and will be retransmitted."""

    psn: int
    ev: int
    plane: int
    reason: LossReason
    sent_ns: int


@dataclass(frozen=True, slots=True)
class Retransmitted(Event):
    """A lost packet went out again."""

    psn: int
    old_ev: int
    new_ev: int


Note = Callable[[Callable[..., Event], tuple[object, ...]], None]
"""Takes an event's class and the values of its fields."""


def made_by(emit: Callable[[Event], None]) -> Note:
    """Return a function that makes each event at once and passes it on."""

    def note(kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        emit(kind(*values))

    return note


class Unmade:
    """The values of an event, from which it is made later.

    The classes of events are not compiled, so that making an event takes as long as sending a packet. After a
    loss it takes several times as long, since no cache holds that code. The repair of the loss comes first.
    """

    __slots__ = ("kind", "values")

    def __init__(self, kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        self.kind = kind
        self.values = values
        """Of the event's fields, in order."""
