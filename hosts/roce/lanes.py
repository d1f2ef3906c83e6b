"""Options of RoCEv2 with failover of ports, and the state of a lane (`mrclab.hosts.roce.failover`)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Final

from mrclab.hosts.roce.config import RoceConfig
from mrclab.hosts.roce.endpoint import RoceAttributes
from mrclab.hosts.roce.queue_pair import Connection
from mrclab.hosts.roce.wire import Route

_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class FailoverConfig(RoceConfig):
    """Options of RoCEv2 and of failover. Each docstring begins with NCCL's name of the option."""

    kind: ClassVar[str] = "rocev2-failover"

    failover_attempts: int = 1
    """PORT_FAILOVER_MAX_ATTEMPTS: number of moves that a lane may make before it returns to its home port."""
    probe_delay_ns: int = 10 * _MS
    """PORT_FAILOVER_PROBE_DELAY: time between a failure and the first probe to the peer, ns."""
    recovery: bool = True
    """PORT_RECOVERY: if True, a failed port is tested again."""
    recovery_start_ns: int = 200 * _MS
    """PORT_RECOVERY_START_DELAY: time between a failure and the first alive messages, ns."""
    alive_interval_ns: int = 500 * _MS
    """PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL: time between two batches of alive messages, ns."""
    alive_batch: int = 5
    """PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE: number of alive messages in a batch."""
    alive_sequence: int = 5
    """PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE: number of answers after which the port counts as working."""
    alive_timeout_ns: int = 4000 * _MS
    """PORT_RECOVERY_ALIVE_MSG_TIMEOUT: duration of one attempt to recover the port, ns."""
    recovery_attempts: int = 5
    """PORT_RECOVERY_ATTEMPTS_MAX: number of attempts after which the port is not tested any more."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of range."""
        super(FailoverConfig, self).__post_init__()
        if min(self.failover_attempts, self.probe_delay_ns, self.recovery_start_ns) < 0:
            raise ValueError("failover_attempts and delays must not be negative")
        if min(self.alive_interval_ns, self.alive_batch, self.alive_sequence, self.recovery_attempts) < 1:
            raise ValueError("alive_interval_ns, _batch, _sequence and recovery_attempts must be positive")


@dataclass(frozen=True, slots=True)
class FailoverAttributes(RoceAttributes):
    """The attributes of one end of a connection that has queue pairs on every port."""

    kind: ClassVar[str] = "rocev2-failover"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a queue pair, and the headers of frames to it."""

    qpn: int
    attributes: RoceAttributes
    route: Route


@dataclass(slots=True)
class Request:
    """The part of a message that is posted on one lane."""

    wr_id: int
    data: memoryview
    va: int
    rkey: int
    imm: int | None


@dataclass(slots=True, eq=False)
class Lane:
    """The state of a lane (see `mrclab.hosts.roce.failover`) at its sending end."""

    first: int
    """Number of the lane's queue pair on port 0. Its queue pair on port i has this number plus i."""
    number: int
    connection: Connection
    home: int
    """Index of the port that the lane uses if all ports work."""
    at: int
    """Index of the port that the lane uses now."""
    open: deque[Request] = field(default_factory=deque)
    """Requests that are posted on the present queue pair and not complete, in order."""
    held: deque[Request] = field(default_factory=deque)
    """Requests that wait until the lane has moved to another port."""
    failed_at: int = -1
    """Index of the failed port, until the peer has answered the probe; -1: none."""
    due_ns: int | None = None
    """Time of the next probe; None: no probe is due."""
    moves: int = 0
    probes: int = 0
    posted: int = 0
    """Number of messages posted on the present queue pair."""
    completed: int = 0
    """Number of messages that completed on the present queue pair."""
    carried: dict[int, int] = field(default_factory=dict)
    """Number of messages that completed on each queue pair that the lane used earlier, by index of port."""
    # Attempts to return to the home port, the port with index `home`
    attempt: int = 0
    attempt_until_ns: int | None = None
    alive_due_ns: int | None = None
    alive_sent: int = 0
    answered: set[int] = field(default_factory=set)
    home_is_back: bool = False
