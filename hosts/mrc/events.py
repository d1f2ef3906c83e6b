"""Events of MRC's entropy values, planes and windows: one small class per kind.

`mrclab.hosts.rdma.events` has the events that RoCEv2 shares. `t_ns` is the time that the caller passed in
when the event came about.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from mrclab.hosts.rdma.events import Event, LossReason


class RetireReason(Enum):
    """Why an EV left the rotation."""

    LOSS = "loss"
    TIMEOUT = "timeout"
    ALWAYS_SKIP = "always skip"
    DENIED = "denied"


RETIRE_FOR: Final = {
    LossReason.GAP: RetireReason.LOSS,
    LossReason.RETIRED: RetireReason.LOSS,
    LossReason.PROBE: RetireReason.LOSS,
    LossReason.TIMEOUT: RetireReason.TIMEOUT,
}
"""The losses that retire an EV."""


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
class SpuriousLoss(Event):
    """A packet that counted as lost had only been late. If the reordering window decided so, it widens."""

    psn: int
    ev: int
    reordering_window_ns: int


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


@dataclass(frozen=True, slots=True)
class EndpointAnswered(Event):
    """A controller's request to a NIC was answered, or was not in time (`rtt_ns` None). `qpn` is 2, of no QP.

    `port` is the one that the response came in on; without one, that of the request.
    """

    request_id: int
    op: int
    """`EndpointOp`: EV_PROBE or PORT_STATUS_UPDATE."""
    port: int
    rtt_ns: int | None
    adjusted: bool
    """The time for which the responder held the answer back is taken out already."""


@dataclass(frozen=True, slots=True)
class PortStatusUnanswered(Event):
    """The peer answered no port status update, and the options allow no further one."""

    port_status_mask: int
