"""Data for a page or a terminal that watches an agent: progress, paths, and the newest events.

``watch`` keeps the newest events of paths and planes in memory from then on, instead of an event log in a
file; ``news`` returns the events since the last ``news``, so one request per host and tick is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, astuple
from typing import Any

from mrclab.hosts.endpoint import Endpoint
from mrclab.hosts.mrc.events import EvReplaced, EvRestored, EvRetired, PlaneDown, PlaneUp
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.streams.rounds import Connection

KEPT_EVENTS = 4096
KINDS = (EvRetired, EvReplaced, EvRestored, PlaneDown, PlaneUp)


class RecentEvents:
    """A log in memory (`mrclab.hosts.streams.rounds.Log`): the newest events of the kinds to show."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        self._events: deque[Event] = deque(maxlen=kept)

    def add(self, event: Event, now_ns: int) -> None:
        """Keep an event, if it is of a kind to show."""
        if isinstance(event, KINDS):
            self._events.append(event)

    def next_due(self) -> int | None:
        """Return None: nothing is ever due."""
        return None

    def hand_over(self, now_ns: int) -> None:
        """Do nothing: events wait until somebody takes them."""

    def take(self) -> list[dict[str, Any]]:
        """Return the events since the last call as JSON, oldest first: their fields, and ``name``."""
        found = [event_record(event) for event in self._events]
        self._events.clear()
        return found


def event_record(event: Event) -> dict[str, Any]:
    """Return an event as JSON: its fields, and ``name``."""
    fields = asdict(event)
    reason = fields.get("reason")
    if reason is not None:
        fields["reason"] = reason.name.lower()
    return {"name": type(event).__name__, **fields}


def flow_state(endpoint: Endpoint, connection: Connection) -> dict[str, Any]:
    """Return the progress of one queue pair.

    ``placed`` are the payload bytes that arrived here (each once); ``sent`` and ``resent`` count packets.
    """
    counters = endpoint.qp_counters(connection.qpn)
    sender, receiver = connection.sender, connection.receiver
    return {
        "placed": counters.bytes_placed,
        "sent": counters.sent,
        "resent": counters.retransmitted,
        "failed": None if sender is None else sender.failed,
        "problem": None if receiver is None else receiver.problem,
    }


def path_states(endpoint: Endpoint, connection: Connection) -> Sequence[Sequence[int]]:
    """Return the paths of a connection, a row each as in `path_rows`."""
    return path_rows(endpoint, connection.qpn)


def path_rows(endpoint: Endpoint, qpn: int) -> list[list[int]]:
    """Return [EV, plane, state, active, sent, acknowledged, lost, ECN-marked, trimmed, retired] of each path.

    These are the fields of `EvCounters`. ``state`` is the number of an `EvState`, ``active`` is 0 or 1.
    """
    return [[int(value) for value in astuple(ev)] for ev in endpoint.ev_counters(qpn)]
