"""Events of MRC's entropy values (EVs), planes and windows: one small class per kind.

`mrclab.hosts.rdma.events` has the events that RoCEv2 also has. `t_ns` is the time at which the event
happened, as the caller of the endpoint passed it in.
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
"""For each loss reason that retires an EV: the reason for its retirement."""


@dataclass(frozen=True, slots=True)
class EvRetired(Event):
    """An EV left the rotation."""

    ev: int
    plane: int
    reason: RetireReason
    psn: int | None


@dataclass(frozen=True, slots=True)
class EvReplaced(Event):
    """A backup EV of the same plane replaced a retired EV in the rotation."""

    ev: int
    new_ev: int
    plane: int


@dataclass(frozen=True, slots=True)
class EvRestored(Event):
    """An EV is usable again: probes of an ASSUMED_BAD EV succeeded, or a denied EV was allowed."""

    ev: int
    plane: int


@dataclass(frozen=True, slots=True)
class EvSkipped(Event):
    """An EV is congested (CE mark or trim): the rotation skips it once."""

    ev: int
    plane: int
    trimmed: bool


@dataclass(frozen=True, slots=True)
class SpuriousLoss(Event):
    """A packet that counted as lost was only late. If the reordering window was too short, it grows."""

    psn: int
    ev: int
    reordering_window_ns: int


@dataclass(frozen=True, slots=True)
class ProbeSent(Event):
    """A reliability probe was sent.

    If `tail` is True, the probe looks for lost packets. Otherwise the probe tests an ASSUMED_BAD EV.
    """

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
    """A plane went out of service for this QP: the local port or (`remote`) the peer's port went down."""

    plane: int
    remote: bool


@dataclass(frozen=True, slots=True)
class PlaneUp(Event):
    """A plane came back into service for this QP."""

    plane: int
    remote: bool


@dataclass(frozen=True, slots=True)
class WindowChanged(Event):
    """Congestion control changed the window. One event may report several changes."""

    cwnd_bytes: int
    inflight_bytes: int


@dataclass(frozen=True, slots=True)
class EvProbed(Event):
    """An EV_PROBE of the user was answered or timed out. If it timed out, `rtt_ns` is None."""

    request_id: int
    ev: int
    plane: int
    rtt_ns: int | None


@dataclass(frozen=True, slots=True)
class EndpointAnswered(Event):
    """A controller's request to a NIC was answered or timed out. If it timed out, `rtt_ns` is None.

    `qpn` is 2: no queue pair has this number. `port` is the port on which the response arrived. If there is
    no response, `port` is the port of the request.
    """

    request_id: int
    op: int
    """`EndpointOp`: EV_PROBE or PORT_STATUS_UPDATE."""
    port: int
    rtt_ns: int | None
    adjusted: bool
    """True: `rtt_ns` does not include the time between the request's arrival and the responder's answer."""


@dataclass(frozen=True, slots=True)
class PortStatusUnanswered(Event):
    """The peer answered no port status update, and the options allow no further attempt."""

    port_status_mask: int
