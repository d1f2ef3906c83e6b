"""Channels between ranks: the interface of a transport, and the channel for ranks that share a host.

There is one operation, similar to RDMA's WRITE with immediate: ``put`` copies from our memory into a peer's
exposed region, and the peer gets an ``Arrived`` event with a tag. A peer is identified by its rank. Nothing
blocks: the NIC works inside ``turn``, and ``events`` returns what happened.

The order of calls: ``expose`` all regions; exchange ``attributes`` out of band; ``connect`` to every peer
that is used; then ``put`` and ``turn``. Every rank exposes its regions in the same order, so that region 0
has the same meaning on all ranks.

Ranks of one host share its NIC (``HostChannel``) and put directly into one another's memory: traffic between
them does not cross the network, as in collective libraries, which use shared memory or NVLink.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TAG_BITS = 26
"""Tags are 0 to 2^26 - 1. A tag may be reused once its put is done."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A peer's put is complete in our memory. Puts may overtake one another."""

    peer: int
    tag: int
    length_bytes: int
    t_ns: int
    """When it was complete, CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class Done:
    """One of our puts is in the peer's memory, or has failed. Its buffer may be changed from now on."""

    peer: int
    ticket: int
    t_ns: int
    error: str | None = None


ChannelEvent = Arrived | Done


class Channel(Protocol):
    """One rank's end of the connections to its peers. Not safe for use from more than one thread."""

    def expose(self, buffer: memoryview) -> int:
        """Let peers put into a writable buffer. Return the region's number, counted from 0."""

    def attributes(self, peer: int) -> dict[str, Any]:
        """Return what that peer needs to ``connect`` to us, in JSON's types."""

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """Connect to a peer, given its ``attributes`` for us. Both ends must do so before data flows.

        This may return before the connection is established: puts are then sent once it is.
        """

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """Start a put and return its ticket. ``data`` must not change until the put's ``Done``.

        The sender copies the data at most once, into frames.
        """

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """Work until something arrived or was due. Return which of ``others`` (descriptors) are readable.

        Return at ``until_ns`` (CLOCK_MONOTONIC) at the latest; None waits without limit.
        """

    def events(self) -> list[ChannelEvent]:
        """Return what happened since the last call, in order."""

    def bytes_delivered(self) -> int:
        """Return the payload bytes placed in our memory so far, each counted once."""

    def counters(self) -> dict[str, int]:
        """Return the transport's counters over all peers.

        They include ``sent_packets`` and ``retransmitted_packets`` if the transport knows them.
        """

    def event_columns(self) -> dict[str, list[int]]:
        """Return the transport's own events as columns. Times are CLOCK_MONOTONIC ns.

        The names are the same for all transports: ``lost_ns``, when a packet was declared lost, with
        ``lost_sent_ns``, when it was sent, and ``lost_ev``; ``retired_ns``, when a path was retired, with
        ``retired_ev``; ``restored_ns`` and ``restored_ev``.
        """

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """Return the data that a viewer of a running job shows, in JSON's types.

        ``placed``: by peer (as text), the payload bytes that came from it so far; ``events``: the events of
        paths since the last call, as `mrclab.hosts.observation` writes them; ``paths``: those to the peer
        ``paths_to``, a row each as in `mrclab.hosts.observation.path_states`. A transport whose paths the
        fabric chooses has neither. With ``forget``, reported events are not kept for ``event_columns``
        and
        ``save_log``: a job that runs for hours takes no more memory then.
        """

    def deny(self, links: Collection[str]) -> None:
        """Avoid these links of the fabric, and use all others again, where the transport chooses paths."""

    def save_log(self, path: Path) -> int:
        """Write the transport's event log to a file, one JSON object per line. Return the number of lines."""

    def close(self) -> None:
        """Close the channel. Data in flight is lost."""


Turn = Callable[[int | None, Collection[int]], Collection[int]]
"""The signature of ``Channel.turn``."""


class HostChannel:
    """A rank's channel that reaches ranks of the same host through memory, and others through ``remote``."""

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
        """See Channel. Tickets of puts to ranks of the same host are negative, all others are not."""
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
        """Place the put of a rank on the same host. Raise ValueError if it does not fit the region."""
        self._regions[region][offset : offset + len(data)] = data
        self._bytes += len(data)

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """See Channel."""
        return self._remote.turn(0 if self._ready else until_ns, others)

    @property
    def pending(self) -> bool:
        """True if ``events`` has something to return from ranks of the same host."""
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
        """See Channel: counters of the network only."""
        return self._remote.counters()

    def event_columns(self) -> dict[str, list[int]]:
        """See Channel."""
        return self._remote.event_columns()

    def news(self, paths_to: int | None, *, forget: bool = False) -> dict[str, Any]:
        """See Channel: news of the network only."""
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
    """Return the channels of all ranks of a host, in order, and one ``turn`` for all of them.

    ``remotes`` are their channels over the host's NIC; ``turn`` lets that NIC work for all of them.
    """
    channels: dict[int, HostChannel] = {}
    for rank, remote in remotes.items():
        channels[rank] = HostChannel(rank, remote, channels, clock)

    def turn_all(until_ns: int | None, others: Collection[int]) -> Collection[int]:
        pending = any(channel.pending for channel in channels.values())
        return turn(0 if pending else until_ns, others)

    return list(channels.values()), turn_all
