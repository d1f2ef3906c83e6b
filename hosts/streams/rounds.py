"""A NIC's process between two commands: post, send, take in, tell; round after round."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from hosts.nic.device import Device
from hosts.rdma.events import Event
from hosts.streams.stream import StreamReceiver, StreamSender

ROUNDS = 256
"""At most so many in a row, before whoever drives them sees to its own affairs."""


class Connection:
    """A queue pair and the streams over it, one each way at most."""

    def __init__(self, qpn: int) -> None:
        self.qpn = qpn
        self.peer = ""
        self.sender: StreamSender | None = None
        self.receiver: StreamReceiver | None = None


class Log(Protocol):
    """What takes events: `hosts.eventlog.EventLog`."""

    def add(self, event: Event, now_ns: int) -> None:
        """Takes one."""

    def next_due(self) -> int | None:
        """When ``hand_over`` wants to be called, at the latest."""

    def hand_over(self, now_ns: int) -> None:
        """Passes on what there is."""


class Rounds:
    """Drives a device and the streams over it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.connections: dict[int, Connection] = {}
        """By queue pair number."""
        self.log: Log | None = None

    def run(
        self, until_ns: int | None, others: Collection[int], deciding: tuple[type, ...]
    ) -> tuple[Collection[int], bool]:
        """Works until one of ``others`` (descriptors) is readable, ``until_ns`` is over, or an event of a
        ``deciding`` type has come, and at times without any of these.

        Returns which descriptors are readable, and whether such an event has come.
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
