"""Several ranks on one host: they share its NIC, and put straight into one another's memory.

Between ranks of a host nothing crosses the network, as with collective libraries, which go through shared
memory or NVLink there.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hosts.collectives.channel import Arrived, Channel, ChannelEvent, Done

Turn = Callable[[int | None, Collection[int]], Collection[int]]
"""Has a NIC work, as ``Channel.turn`` does."""


class HostChannel:
    """A rank's channel where other ranks are on its host: those by memory, the rest by ``remote``."""

    def __init__(self, rank: int, remote: Channel, host: Mapping[int, HostChannel]) -> None:
        self._rank = rank
        self._remote = remote
        self._host = host
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
        """See Channel. Tickets of puts to neighbours are negative, those of others are not."""
        neighbour = self._host.get(peer)
        if neighbour is None:
            return self._remote.put(peer, region, offset, data, tag)
        now = time.monotonic_ns()
        neighbour.take(region, offset, data)
        neighbour._ready.append(Arrived(self._rank, tag, len(data), now))
        self._tickets -= 1
        self._ready.append(Done(peer, self._tickets, now))
        return self._tickets

    def take(self, region: int, offset: int, data: memoryview) -> None:
        """Takes in what a neighbour puts. Raises ValueError where it does not fit."""
        self._regions[region][offset : offset + len(data)] = data
        self._bytes += len(data)

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """See Channel."""
        return self._remote.turn(0 if self._ready else until_ns, others)

    @property
    def pending(self) -> bool:
        """Whether a neighbour's put, or one to a neighbour, is still to be told of."""
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
        """See Channel: of the network alone."""
        return self._remote.counters()

    def event_columns(self) -> dict[str, list[int]]:
        """See Channel."""
        return self._remote.event_columns()

    def save_log(self, path: Path) -> int:
        """See Channel."""
        return self._remote.save_log(path)

    def close(self) -> None:
        """See Channel."""
        self._remote.close()


def on_one_host(remotes: Mapping[int, Channel], turn: Turn) -> tuple[Sequence[Channel], Turn]:
    """The channels of all ranks of a host, in order, and what has them all work.

    ``remotes`` are their channels over the host's NIC, ``turn`` has that NIC work for all of them.
    """
    channels: dict[int, HostChannel] = {}
    for rank, remote in remotes.items():
        channels[rank] = HostChannel(rank, remote, channels)

    def turn_all(until_ns: int | None, others: Collection[int]) -> Collection[int]:
        pending = any(channel.pending for channel in channels.values())
        return turn(0 if pending else until_ns, others)

    return list(channels.values()), turn_all
