"""Data for a page or a terminal that shows an agent: progress, paths, and the newest events.

After the request ``watch``, an agent keeps the newest events of paths and planes in memory; it writes no
event log file. The request ``news`` returns the events since the last ``news``, so one request to each host
per screen update is enough.
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
    """A log that keeps the newest events in memory, with the interface `mrclab.hosts.streams.rounds.Log`."""

    def __init__(self, kept: int = KEPT_EVENTS) -> None:
        self._events: deque[Event] = deque(maxlen=kept)

    def add(self, event: Event, now_ns: int) -> None:
        """Keep an event if viewers show events of this kind."""
        if isinstance(event, KINDS):
            self._events.append(event)

    def next_due(self) -> int | None:
        """Return None, because this log never has events to write."""
        return None

    def hand_over(self, now_ns: int) -> None:
        """Do nothing: events stay in memory until ``take`` is called."""

    def take(self) -> list[dict[str, Any]]:
        """Remove and return all events as JSON objects, oldest first: their fields, and ``name``."""
        found = [event_record(event) for event in self._events]
        self._events.clear()
        return found


def event_record(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object: its fields, and ``name``."""
    fields = asdict(event)
    reason = fields.get("reason")
    if reason is not None:
        fields["reason"] = reason.name.lower()
    return {"name": type(event).__name__, **fields}


def flow_state(endpoint: Endpoint, connection: Connection) -> dict[str, Any]:
    """Return the progress of one queue pair.

    ``placed`` counts the payload bytes that arrived here, each once. ``sent`` and ``resent`` count packets.
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
    """Return the paths of a connection, in the form of `path_rows`."""
    return path_rows(endpoint, connection.qpn)


def path_rows(endpoint: Endpoint, qpn: int) -> list[list[int]]:
    """Return [EV, plane, state, active, sent, acknowledged, lost, ECN-marked, trimmed, retired] of each path.

    These are the fields of `EvCounters`. ``state`` is the number of an `EvState`; ``active`` is 0 or 1.
    """
    return [[int(value) for value in astuple(ev)] for ev in endpoint.ev_counters(qpn)]
