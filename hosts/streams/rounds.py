"""The main loop of a process with a NIC and streams, between two requests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from mrclab.hosts.nic.device import Device
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.streams.stream import StreamReceiver, StreamSender

ROUNDS = 256
"""How many turns of the NIC to make before returning to the caller."""


class Connection:
    """A queue pair and the streams over it, at most one in each direction."""

    def __init__(self, qpn: int) -> None:
        self.qpn = qpn
        self.peer = ""
        self.sender: StreamSender | None = None
        self.receiver: StreamReceiver | None = None


class Log(Protocol):
    """The interface of an event log: `mrclab.hosts.eventlog.EventLog`."""

    def add(self, event: Event, now_ns: int) -> None:
        """Add an event."""

    def next_due(self) -> int | None:
        """Return when to call ``hand_over`` at the latest."""

    def hand_over(self, now_ns: int) -> None:
        """Pass events on."""


class Rounds:
    """The loop that drives a device and the streams over it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.connections: dict[int, Connection] = {}
        """By queue pair number."""
        self.log: Log | None = None

    def run(
        self, until_ns: int | None, others: Collection[int], deciding: tuple[type, ...]
    ) -> tuple[Collection[int], bool]:
        """Work until one of ``others`` (descriptors) is readable, until ``until_ns``, or until an event of a
        ``deciding`` type. This may also return before any of these.

        Return which descriptors are readable, and True if there was such an event.
        """
        device, log, connections = self.device, self.log, self.connections
        senders = [c.sender for c in connections.values() if c.sender is not None]
        for _ in range(ROUNDS):
            due = until_ns
            for sender in senders:
                sender.tick()
                at = sender.next_due()
                if at is not None and (due is None or at < due):
                    due = at
            if log is not None:
                at = log.next_due()
                if at is not None and (due is None or at < due):
                    due = at
            readable = device.turn(due, others)
            now_ns = device.now()
            decided = False
            for event in device.events():
                if log is not None:
                    log.add(event, now_ns)
                if deciding and isinstance(event, deciding):
                    decided = True
                connection = connections.get(event.qpn)
                if connection is not None:
                    if connection.receiver is not None:
                        connection.receiver.on_event(event)
                    if connection.sender is not None:
                        connection.sender.on_event(event)
            if log is not None:
                log.hand_over(now_ns)
            if readable or decided or (until_ns is not None and now_ns >= until_ns):
                return readable, decided
        return (), False
