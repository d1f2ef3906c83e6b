"""Options of RoCEv2 with failing ports, and the state of a lane (`mrclab.hosts.roce.failover`)."""

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
    """Options of RoCEv2, and NCCL's for failing ports."""

    kind: ClassVar[str] = "rocev2-failover"

    failover_attempts: int = 1
    """PORT_FAILOVER_MAX_ATTEMPTS: moves of a lane that are allowed until it is back."""
    probe_delay_ns: int = 10 * _MS
    """PORT_FAILOVER_PROBE_DELAY."""
    recovery: bool = True
    """PORT_RECOVERY: whether a failed port is tried again."""
    recovery_start_ns: int = 200 * _MS
    """PORT_RECOVERY_START_DELAY."""
    alive_interval_ns: int = 500 * _MS
    """PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL."""
    alive_batch: int = 5
    """PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE."""
    alive_sequence: int = 5
    """PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE."""
    alive_timeout_ns: int = 4000 * _MS
    """PORT_RECOVERY_ALIVE_MSG_TIMEOUT."""
    recovery_attempts: int = 5
    """PORT_RECOVERY_ATTEMPTS_MAX."""

    def __post_init__(self) -> None:
        """Raise ValueError for a value out of range."""
        super(FailoverConfig, self).__post_init__()
        if min(self.failover_attempts, self.probe_delay_ns, self.recovery_start_ns) < 0:
            raise ValueError("failover_attempts and delays must not be negative")
        if min(self.alive_interval_ns, self.alive_batch, self.alive_sequence, self.recovery_attempts) < 1:
            raise ValueError("alive_interval_ns, _batch, _sequence and recovery_attempts must be positive")


@dataclass(frozen=True, slots=True)
class FailoverAttributes(RoceAttributes):
    """Those of an end whose connections have queue pairs on every port."""

    kind: ClassVar[str] = "rocev2-failover"


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a queue pair, and the way there."""

    qpn: int
    attributes: RoceAttributes
    route: Route


@dataclass(slots=True)
class Request:
    """A part of a message, as posted on a lane."""

    wr_id: int
    data: memoryview
    va: int
    rkey: int
    imm: int | None


@dataclass(slots=True, eq=False)
class Lane:
    """A lane's state at its sending end."""

    first: int
    """Number of its first queue pair; that of port i is i further."""
    number: int
    connection: Connection
    home: int
    """The port that it uses if all are well."""
    at: int
    """The port that it uses."""
    open: deque[Request] = field(default_factory=deque)
    """Posted on its queue pair and not complete, in order."""
    held: deque[Request] = field(default_factory=deque)
    """Posted while it had no queue pair, or waits to go home."""
    failed_at: int = -1
    """The failed port, until the peer has answered the probe; -1: none."""
    due_ns: int | None = None
    """When to probe, the first time or again."""
    moves: int = 0
    probes: int = 0
    posted: int = 0
    """Messages posted on its present queue pair."""
    completed: int = 0
    """Those of them that are complete."""
    # Recovery of its home port
    attempt: int = 0
    attempt_until_ns: int | None = None
    alive_due_ns: int | None = None
    alive_sent: int = 0
    answered: set[int] = field(default_factory=set)
    home_is_back: bool = False
