"""The interface of all jobs, and the communicator: one rank's number, memory and arrived data.

Algorithms and jobs are generators that use the communicator. They yield a ``Wait`` whenever they cannot
continue. A driver then lets the channel work, passes the channel's events to the communicator (``take``), and
resumes the generator when the wait is over. So one process can run one rank over a real transport, or, in
tests, all ranks with the same code. ``rank.JOBS`` lists the jobs.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mrclab.hosts.collectives.channel import TAG_BITS, Arrived, Channel, ChannelEvent, Done

Clock = Callable[[], int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait until a condition holds or until a time (CLOCK_MONOTONIC, ns), whichever comes first."""

    ready: Callable[[], bool]
    until_ns: int | None = None
    descriptor: int | None = None
    """If this descriptor is readable, the condition may hold. None: only channel events can make it hold."""


Steps = Generator[Wait, None, T]


class PutError(RuntimeError):
    """A put has failed permanently, because the transport stopped sending to the peer."""


class Communicator:
    """One of ``size`` ranks, with its channel and its exposed regions.

    Every rank must call ``tags`` in the same order with the same counts. Then all ranks use the same tags
    without exchanging them. Ranks that run the same algorithms fulfil this rule.
    """

    def __init__(
        self,
        channel: Channel,
        rank: int,
        size: int,
        clock: Clock = time.monotonic_ns,
        end_of_tags: int = 1 << TAG_BITS,
    ) -> None:
        """Use a channel. Algorithms use only the tags below ``end_of_tags``."""
        self.channel = channel
        self.rank = rank
        self.size = size
        self.now = clock
        self.regions: list[memoryview] = []
        self.listener: Callable[[ChannelEvent], None] | None = None
        """A function that gets every event. If it is None, arrivals are stored for the algorithms."""
        self._arrived: dict[tuple[int, int], Arrived] = {}
        self._under_way: set[int] = set()
        self._next_tag = 0
        self._end_of_tags = end_of_tags
        self.taken = 0
        """Number of events so far. A driver checks its waits only if this number has changed."""

    def expose(self, size_bytes: int) -> memoryview:
        """Create and expose a region of this size. Regions are numbered from 0, in the order of creation."""
        region = memoryview(bytearray(size_bytes))
        self.channel.expose(region)
        self.regions.append(region)
        return region

    def tags(self, count: int) -> int:
        """Return the first of ``count`` consecutive tags. After the last tag, numbers begin again at 0."""
        if self._next_tag + count > self._end_of_tags:
            self._next_tag = 0
        first = self._next_tag
        self._next_tag += count
        return first

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """Start a put and return its ticket. See ``Channel.put``."""
        ticket = self.channel.put(peer, region, offset, data, tag)
        self._under_way.add(ticket)
        return ticket

    def take(self, event: ChannelEvent) -> None:
        """Process an event of the channel. Raise PutError for a put that failed."""
        self.taken += 1
        if isinstance(event, Done):
            self._under_way.discard(event.ticket)
            if event.error is not None:
                raise PutError(f"rank {self.rank} gave up on rank {event.peer}: {event.error}")
        if self.listener is not None:
            self.listener(event)
        elif isinstance(event, Arrived):
            self._arrived[event.peer, event.tag] = event

    def has_arrived(self, peer: int, *tags: int) -> bool:
        """Return True if a put of this peer with one of these tags has arrived."""
        return any((peer, tag) in self._arrived for tag in tags)

    def take_arrival(self, peer: int, tag: int) -> Arrived | None:
        """Remove and return the put of a peer with this tag, or None if this put has not arrived."""
        return self._arrived.pop((peer, tag), None)

    def under_way(self, ticket: int) -> bool:
        """Return True if this put is not in the peer's memory yet."""
        return ticket in self._under_way

    def arrival(self, peer: int, tag: int) -> Steps[Arrived]:
        """Wait for the put of a peer with this tag, and return it."""
        key = (peer, tag)
        if key not in self._arrived:
            yield Wait(lambda: key in self._arrived)
        return self._arrived.pop(key)

    def all_put(self) -> Steps[None]:
        """Wait until all puts of this rank are in the peers' memory."""
        if self._under_way:
            yield Wait(lambda: not self._under_way)

    def until(self, time_ns: int) -> Steps[None]:
        """Wait until ``time_ns``. The NIC continues to work during the wait."""
        if self.now() < time_ns:
            yield Wait(lambda: False, time_ns)


Samples = dict[str, npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Times:
    """The times at which a job and its measurement begin (CLOCK_MONOTONIC, ns)."""

    start_ns: int
    measure_ns: int


class Job(Protocol):
    """A rank's part of a workload."""

    @property
    def problem(self) -> str | None:
        """The error in the arrived data, or None."""

    def prepare(self, comm: Communicator) -> None:
        """Expose the memory that the job needs."""

    def peers(self) -> set[int]:
        """Return the ranks with which the job communicates."""

    def steps(self, comm: Communicator, times: Times) -> Steps[None]:
        """Run the job, as a generator of waits."""

    def samples(self) -> Samples:
        """Return the job's measured values: arrays by the name of the value."""


def columns(rows: Sequence[tuple[int, ...]], names: tuple[str, ...]) -> Samples:
    """Return rows of integers as one array per column."""
    table = np.array(rows, dtype=np.int64).reshape(-1, len(names))
    return {name: table[:, i] for i, name in enumerate(names)}


def as_int64(values: array[int]) -> npt.NDArray[np.int64]:
    """Return an array of the standard library as a NumPy array."""
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, np.int64)
