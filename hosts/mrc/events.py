"""What the core tells its user: one small class per kind of event.

Nothing here happens per packet on an undisturbed path, so events cost nothing there. `t_ns` is the time the
caller passed in when the event came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """How a work request ended."""

    SUCCESS = "success"
    REMOTE_ACCESS_ERROR = "remote access error"
    RETRY_EXCEEDED = "Retry Counter Exceeded"
    REMOTE_INVALID_REQUEST_ERROR = "remote invalid request error"
    """RoCEv2 only: packets of a message that do not fit one another."""
    REMOTE_OPERATION_ERROR = "remote operation error"
    """RoCEv2 only."""
    RNR_RETRY_EXCEEDED = "RNR Retry Counter Exceeded"
    """RoCEv2 only: no receive was posted for too long."""
    FLUSHED = "flushed"
    """The QP failed before this request was done."""


class LossReason(Enum):
    """How a packet was found to be lost."""

    GAP = "gap"
    """Packets sent well after it were acknowledged."""
    PROBE = "probe"
    """A tail probe sent well after it was answered."""
    TIMEOUT = "timeout"
    """The ACK timer ran out although the peer was heard."""
    TRIMMED = "trimmed"
    TRIMMED_LASTHOP = "trimmed at the last hop"
    NACK = "nack"
    PORT_DOWN = "port down"


class RetireReason(Enum):
    """Why an EV left the rotation."""

    LOSS = "loss"
    TIMEOUT = "timeout"
    ALWAYS_SKIP = "always skip"
    DENIED = "denied"


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
    """A WRITE_IMM message arrived whole; in order of RQMSN."""

    imm: int
    length_bytes: int
    rqmsn: int


@dataclass(frozen=True, slots=True)
class QpError(Event):
    """The QP went to its error state; its open requests complete as flushed."""

    status: Status
    detail: str


@dataclass(frozen=True, slots=True)
class EvRetired(Event):
    """An EV left the rotation."""

    ev: int
    plane: int
    reason: RetireReason
    psn: int | None


@dataclass(frozen=True, slots=True)
class EvReplaced(Event):
    """A spare of the same plane took a retired EV's place."""

    ev: int
    new_ev: int
    plane: int


@dataclass(frozen=True, slots=True)
class EvRestored(Event):
    """Probes of an ASSUMED_BAD EV succeeded (or a denied one was allowed): it is usable again."""

    ev: int
    plane: int


@dataclass(frozen=True, slots=True)
class EvSkipped(Event):
    """Congestion on an EV (CE mark or trim): it sits out its next turn."""

    ev: int
    plane: int
    trimmed: bool


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


@dataclass(frozen=True, slots=True)
class SpuriousLoss(Event):
    """A packet that counted as lost had only been late; the reordering guard widens."""

    psn: int
    ev: int
    guard_ns: int


@dataclass(frozen=True, slots=True)
class ProbeSent(Event):
    """A reliability probe went out: `tail` to elicit a SACK, else to test an ASSUMED_BAD EV."""

    ev: int
    plane: int
    probe_id: int
    tail: bool


@dataclass(frozen=True, slots=True)
class ProbeAnswered(Event):
    """A reliability probe was answered."""

    ev: int
    plane: int
    probe_id: int
    rtt_ns: int


@dataclass(frozen=True, slots=True)
class PlaneDown(Event):
    """A plane left service for this QP: our port or the peer's (`remote`) went down."""

    plane: int
    remote: bool


@dataclass(frozen=True, slots=True)
class PlaneUp(Event):
    """A plane came back into service for this QP."""

    plane: int
    remote: bool


@dataclass(frozen=True, slots=True)
class WindowChanged(Event):
    """Congestion control changed the window, at least once since the last such event."""

    cwnd_bytes: int
    inflight_bytes: int


@dataclass(frozen=True, slots=True)
class EvProbed(Event):
    """An EV_PROBE that the user asked for was answered, or was not in time (`rtt_ns` None)."""

    request_id: int
    ev: int
    plane: int
    rtt_ns: int | None
    service_time_ns: int


@dataclass(frozen=True, slots=True)
class PortStatusUnanswered(Event):
    """The peer was told of our ports' state as often as the options say, and never answered."""

    port_status_mask: int
