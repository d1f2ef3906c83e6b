"""The main loop of a process that has a NIC and streams. The loop returns when a request arrives."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from mrclab.hosts.mrc.events import EndpointAnswered, EvRestored, EvRetired
from mrclab.hosts.nic.device import Device
from mrclab.hosts.rdma.events import Event
from mrclab.hosts.streams.stream import StreamReceiver, StreamSender

ROUNDS = 256
"""Largest number of turns (passes of the loop) before the loop returns to the caller."""
MOST_GAPS = 64
"""Largest number of stored gaps, and of stored retirements: the longest gaps and the first retirements."""


class Beat:
    """The longest gaps between two turns (passes of the loop). Each turn waits at most ``every_ns``.

    A gap of more than ``gap_ns`` is recorded. During a gap the process did not run, for instance because of a
    signal, a page fault, a long request, or a pause of the whole machine.
    """

    def __init__(self, every_ns: int, gap_ns: int) -> None:
        self.every_ns = every_ns
        self.gap_ns = gap_ns
        self.last_ns = 0
        """Time at which the last turn ended, CLOCK_MONOTONIC, ns; 0 before the first turn."""
        self.retired_ns: list[int] = []
        """Times at which EVs were retired, ns, since the last ``take``."""
        self._gaps: list[tuple[int, int]] = []

    def note(self, now_ns: int) -> None:
        """Record the gap from the last turn until now."""
        if self.last_ns:
            self._gaps.append((self.last_ns, now_ns))
            if len(self._gaps) > MOST_GAPS:
                self._gaps.remove(min(self._gaps, key=lambda gap: gap[1] - gap[0]))

    def take(self) -> list[tuple[int, int]]:
        """Remove and return the gaps since the last call: start and end of each gap, in order of time."""
        gaps, self._gaps, self.retired_ns = self._gaps, [], []
        return gaps


class Connection:
    """A queue pair and the streams over it, at most one in each direction."""

    def __init__(self, qpn: int) -> None:
        self.qpn = qpn
        self.sender: StreamSender | None = None
        self.receiver: StreamReceiver | None = None


class Log(Protocol):
    """The interface of an event log: `mrclab.hosts.eventlog.EventLog`."""

    def add(self, event: Event, now_ns: int) -> None:
        """Add an event."""

    def next_due(self) -> int | None:
        """Return the time by which ``hand_over`` must be called; None if no event waits."""

    def hand_over(self, now_ns: int) -> None:
        """Write out or send the collected events."""


class Rounds:
    """The loop that drives a device and the streams over it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.connections: dict[int, Connection] = {}
        """Connections by queue pair number."""
        self.log: Log | None = None
        self.beat: Beat | None = None
        """Measures gaps between turns. None: a turn may wait for any time."""
        self.observe: Callable[[Event], None] | None = None
        """Function that gets events of retired and restored EVs, and answers to endpoint requests."""

    def run(
        self, until_ns: int | None, others: Collection[int], deciding: tuple[type, ...]
    ) -> tuple[Collection[int], bool]:
        """Run until one of ``others`` (descriptors) is readable, until ``until_ns``, or until an event of a
        ``deciding`` type. The loop may also return earlier.

        Return the readable descriptors, and True if there was such an event.
        """
        device, log, connections, beat = self.device, self.log, self.connections, self.beat
        observe = self.observe
        senders = [c.sender for c in connections.values() if c.sender is not None]
        for _ in range(ROUNDS):
            due = at = until_ns
            if beat is not None:
                at = device.now() + beat.every_ns
                if due is None or at < due:
                    due = at
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
            if beat is not None:
                if now_ns - beat.last_ns > beat.gap_ns:
                    beat.note(now_ns)
                beat.last_ns = now_ns
            decided = False
            for event in device.events():
                if log is not None:
                    log.add(event, now_ns)
                if beat is not None and isinstance(event, EvRetired) and len(beat.retired_ns) < MOST_GAPS:
                    beat.retired_ns.append(now_ns)
                if observe is not None and isinstance(event, (EvRetired, EvRestored, EndpointAnswered)):
                    observe(event)
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
