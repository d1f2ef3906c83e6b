"""Events and counters of queue pairs of any transport: one small class per kind of event.

On a path without faults, the only events are completions. `t_ns` is the time of the event, which the caller
passed as an argument. Counters give the dropped frames by cause, and the packets of each path by result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum, IntEnum


class EvState(IntEnum):
    """State of an entropy value (EV), and so of a path. Packets may use EVs that are UNKNOWN or GOOD.

    MRC moves its EVs through these states [SPEC Fig 5]. RoCEv2 never stops using a path: its paths are GOOD.
    """

    UNKNOWN = 0
    GOOD = 1
    SKIP = 2
    ASSUMED_BAD = 3
    DENIED = 4


@dataclass(slots=True)
class Drops:
    """Number of arrived frames that were dropped, by cause."""

    too_short: int = 0
    not_mrc: int = 0
    """The frame belongs to another protocol: it has other headers, or another UDP port."""
    bad_length: int = 0
    bad_icrc: int = 0
    wrong_port: int = 0
    """The frame's inner destination is not the address of the receiving port, or this port is down."""
    unknown_qp: int = 0
    wrong_source: int = 0
    unknown_opcode: int = 0
    malformed: int = 0
    """The headers do not fit the packet."""
    contradictory: int = 0
    """The frame is a port status that arrived on a port that it claims to be down."""

    def total(self) -> int:
        """Return the number of dropped frames of all causes."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class EvCounters:
    """The state of one EV, and its counters. All counters except `retired` count packets."""

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
    """How often the EV left the rotation."""


class Status(Enum):
    """How a work request ended."""

    SUCCESS = "success"
    REMOTE_ACCESS_ERROR = "remote access error"
    RETRY_EXCEEDED = "Retry Counter Exceeded"
    REMOTE_INVALID_REQUEST_ERROR = "remote invalid request error"
    """RoCEv2: the packets of a message contradict each other. MRC: too many WRITE_IMMs are in flight."""
    REMOTE_OPERATION_ERROR = "remote operation error"
    """The peer failed for another reason. With MRC also: the write was not allowed."""
    RNR_RETRY_EXCEEDED = "RNR Retry Counter Exceeded"
    """RoCEv2 only: the peer had no receive posted for too long."""
    FLUSHED = "flushed"
    """The QP failed before this request was complete."""


class LossReason(Enum):
    """Why a packet counts as lost."""

    GAP = "gap"
    """A packet that was sent later, by more than the reordering window, was acknowledged."""
    RETIRED = "retired EV"
    """After the packet was sent, its EV was retired for a loss, and a packet sent later was acknowledged."""
    PROBE = "probe"
    """A tail probe that was sent later, by more than the reordering window, was answered."""
    TIMEOUT = "timeout"
    """The ACK timer ran out, although packets of the peer arrived."""
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
    """A posted write is complete or has failed. These events come in the order of posting."""

    wr_id: int
    status: Status
    length_bytes: int


@dataclass(frozen=True, slots=True)
class ReceiveCompleted(Event):
    """A WRITE_IMM message has arrived, in order of RQMSN; or a posted receive was flushed."""

    imm: int
    length_bytes: int
    rqmsn: int
    wr_id: int | None = None
    """Id of the receive that the message consumed; None if no receive has to be posted."""
    status: Status = Status.SUCCESS
    """`FLUSHED` if the queue pair failed before the receive was used; then there is no message."""


@dataclass(frozen=True, slots=True)
class QpError(Event):
    """The QP went to its error state. Its incomplete requests get the status FLUSHED."""

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
    """A lost packet was sent again."""

    psn: int
    old_ev: int
    new_ev: int


Note = Callable[[Callable[..., Event], tuple[object, ...]], None]
"""A function that takes an event's class and the values of its fields."""


def made_by(emit: Callable[[Event], None]) -> Note:
    """Return a `Note` that makes each event immediately and passes the event to `emit`."""

    def note(kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        emit(kind(*values))

    return note


class Unmade:
    """The class and the values of an event that is made later.

    The event classes are not compiled, so making an event takes as long as sending a packet. Therefore, after
    a loss, the retransmission is sent first, and the event is made later.
    """

    __slots__ = ("kind", "values")

    def __init__(self, kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        self.kind = kind
        self.values = values
        """The values of the event's fields, in order."""
