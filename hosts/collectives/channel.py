"""Channels between ranks: the interface of a transport, and the channel for ranks that share a host.

A channel has one operation, similar to RDMA's WRITE with immediate: ``put`` copies from local memory into an
exposed region of a peer, and the peer gets an ``Arrived`` event with a tag. A peer is identified by its rank.
No call blocks except ``turn``, in which the NIC works. ``events`` returns the new events.

First ``expose`` all regions. Exchange the ``attributes`` with the peers, for instance over TCP. Then
``connect`` to every peer that is used. After that, call ``put`` and ``turn``. Every rank exposes its regions
in the same order, so that region 0 has the same meaning on all ranks.

Ranks of one host share its NIC. They use a ``HostChannel``, which copies directly into the memory of the
other rank. Traffic between them does not cross the network, as in collective libraries with shared memory or
NVLink.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TAG_BITS = 26
"""Tags are 0 to 2^26 - 1. A tag may be used again after its put is done."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A peer's put is complete in the memory of this rank. Puts may complete out of order."""

    peer: int
    tag: int
    length_bytes: int
    t_ns: int
    """The time at which the put was complete, CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class Done:
    """A put of this rank is in the peer's memory, or has failed. This rank may reuse the put's memory."""

    peer: int
    ticket: int
    t_ns: int
    error: str | None = None


ChannelEvent = Arrived | Done


class Channel(Protocol):
    """One rank's side of the connections to its peers. Not safe for use from more than one thread."""

    def expose(self, buffer: memoryview) -> int:
        """Let peers put into a writable buffer. Return the region's number, counted from 0."""

    def attributes(self, peer: int) -> dict[str, Any]:
        """Return the attributes that a peer needs to ``connect`` to this rank, with JSON's types."""

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """Connect to a peer, given its ``attributes`` for this rank. Both ends must connect before any put.

        The call may return before the connection is established. Puts then wait for the connection.
        """

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """Start a put and return its ticket. ``data`` must not change until the put's ``Done``.

        The sender copies the data at most once, into frames.
        """

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """Let the NIC work until an event occurs. Return the descriptors in ``others`` that are readable.

        Return at ``until_ns`` (CLOCK_MONOTONIC) at the latest; None waits without limit.
        """

    def events(self) -> list[ChannelEvent]:
        """Return the events since the last call, in order."""

    def bytes_delivered(self) -> int:
        """Return the number of payload bytes placed in this rank's memory so far. Each byte counts once."""

    def counters(self) -> dict[str, int]:
        """Return the transport's counters, summed over all peers.

        They include ``sent_packets`` and ``retransmitted_packets`` if the transport counts packets.
        """

    def event_columns(self) -> dict[str, list[int]]:
        """Return the transport's own events as columns. Times are CLOCK_MONOTONIC ns.

        The names are the same for all transports. At ``lost_ns`` a packet was declared lost. The packet was
        sent at ``lost_sent_ns`` and had the EV ``lost_ev``. ``retired_ns`` and ``retired_ev`` are times and
        EVs of retired paths, ``restored_ns`` and ``restored_ev`` of restored paths.
        """

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """Return the data for a viewer of a running job, in JSON's types.

        ``placed``: for each peer (its rank as text), the payload bytes that arrived from it. ``events``: the
        events of paths since the last call, as in `mrclab.hosts.observation`. ``paths``: one row for each
        path to the peer ``paths_to``, as in `mrclab.hosts.observation.path_states`. ``events`` and ``paths``
        are empty if the fabric chooses the paths. With ``forget``, reported events are deleted, so that the
        memory of a long job does not grow; ``event_columns`` and ``save_log`` then do not return them.
        """

    def deny(self, links: Collection[str]) -> None:
        """Avoid these links and use all others. Do nothing if the transport does not choose paths."""

    def save_log(self, path: Path) -> int:
        """Write the transport's event log to a file, one JSON object per line. Return the number of lines."""

    def close(self) -> None:
        """Close the channel. Data in flight is lost."""


Turn = Callable[[int | None, Collection[int]], Collection[int]]
"""The signature of ``Channel.turn``."""


class HostChannel:
    """A rank's channel: puts to ranks of the same host use memory, puts to other ranks use ``remote``."""

    def __init__(
        self, rank: int, remote: Channel, host: Mapping[int, HostChannel], clock: Callable[[], int]
    ) -> None:
        self._rank = rank
        self._remote = remote
        self._host = host
        self._clock = clock
        self._regions: list[memoryview] = []
        self._tickets = 0
        self._bytes = 0
        self._ready: deque[ChannelEvent] = deque()

    def expose(self, buffer: memoryview) -> int:
        """See Channel."""
        self._regions.append(buffer)
        return self._remote.expose(buffer)

    def attributes(self, peer: int) -> dict[str, Any]:
        """See Channel."""
        return {} if peer in self._host else self._remote.attributes(peer)

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """See Channel."""
        if peer not in self._host:
            self._remote.connect(peer, attributes)

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """See Channel.

        Tickets of puts to ranks of the same host are negative, all other tickets are 0 or more.
        """
        neighbour = self._host.get(peer)
        if neighbour is None:
            return self._remote.put(peer, region, offset, data, tag)
        now = self._clock()
        neighbour.take(region, offset, data)
        neighbour._ready.append(Arrived(self._rank, tag, len(data), now))
        self._tickets -= 1
        self._ready.append(Done(peer, self._tickets, now))
        return self._tickets

    def take(self, region: int, offset: int, data: memoryview) -> None:
        """Copy the data of a put by a rank on the same host. Raise ValueError if the region is too small."""
        self._regions[region][offset : offset + len(data)] = data
        self._bytes += len(data)

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """See Channel."""
        return self._remote.turn(0 if self._ready else until_ns, others)

    @property
    def pending(self) -> bool:
        """Return True if ``events`` would return an event from a rank of the same host."""
        return bool(self._ready)

    def events(self) -> list[ChannelEvent]:
        """See Channel."""
        found = [*self._remote.events(), *self._ready]
        self._ready.clear()
        return found

    def bytes_delivered(self) -> int:
        """See Channel."""
        return self._remote.bytes_delivered() + self._bytes

    def counters(self) -> dict[str, int]:
        """See Channel. The counters do not include puts to ranks of the same host."""
        return self._remote.counters()

    def event_columns(self) -> dict[str, list[int]]:
        """See Channel."""
        return self._remote.event_columns()

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """See Channel. ``placed`` does not include puts of ranks on the same host."""
        return self._remote.news(None if paths_to in self._host else paths_to, forget=forget)

    def deny(self, links: Collection[str]) -> None:
        """See Channel."""
        self._remote.deny(links)

    def save_log(self, path: Path) -> int:
        """See Channel."""
        return self._remote.save_log(path)

    def close(self) -> None:
        """See Channel."""
        self._remote.close()


def on_one_host(
    remotes: Mapping[int, Channel], turn: Turn, clock: Callable[[], int] = time.monotonic_ns
) -> tuple[Sequence[Channel], Turn]:
    """Return a HostChannel for each rank of a host, in order, and one ``turn`` for all these channels.

    ``remotes`` maps each rank to its channel over the NIC. The argument ``turn`` lets the NIC work.
    """
    channels: dict[int, HostChannel] = {}
    for rank, remote in remotes.items():
        channels[rank] = HostChannel(rank, remote, channels, clock)

    def turn_all(until_ns: int | None, others: Collection[int]) -> Collection[int]:
        pending = any(channel.pending for channel in channels.values())
        return turn(0 if pending else until_ns, others)

    return list(channels.values()), turn_all
