"""Several ranks on one host: they share its NIC, and put directly into one another's memory.

Traffic between ranks of a host does not cross the network, as in collective libraries, which use shared
memory or NVLink.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from mrclab.hosts.collectives.channel import Arrived, Channel, ChannelEvent, Done

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
