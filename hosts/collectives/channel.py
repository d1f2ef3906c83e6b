"""What collectives and workloads ask of a transport: put bytes into a peer's memory and tell it so.

One operation, as RDMA's WRITE with immediate: ``put`` copies from our memory to an agreed place in a peer's
exposed region, and the peer learns it as ``Arrived`` with a tag. Peers are named by their rank. Nothing
blocks: the NIC works inside ``turn``, and what came about is handed out by ``events``.

The order of calls: ``expose`` all regions; exchange ``attributes`` out of band; ``connect`` to every peer
that is spoken to; then ``put`` and ``turn``. Every rank exposes its regions in the same order, so that
region 0 of one peer means what region 0 of another does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

TAG_BITS = 26
"""Tags are 0 to 2^26 - 1; one may be used again once the put that had it is done."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """A peer's put is in our memory, all of it. Puts may overtake one another."""

    peer: int
    tag: int
    length_bytes: int
    t_ns: int
    """When it came about, CLOCK_MONOTONIC."""


@dataclass(frozen=True, slots=True)
class Done:
    """One of our puts is in the peer's memory, or has failed for good. Its bytes may change from now on."""

    peer: int
    ticket: int
    t_ns: int
    error: str | None = None


ChannelEvent = Arrived | Done


class Channel(Protocol):
    """One rank's end of the connections to its peers. Not safe for use from more than one thread."""

    def expose(self, buffer: memoryview) -> int:
        """Lets peers put into a writable buffer; returns the region's number, counted from 0."""

    def attributes(self, peer: int) -> dict[str, Any]:
        """What that peer must be told before it can ``connect`` to us, in JSON's types."""

    def connect(self, peer: int, attributes: dict[str, Any]) -> None:
        """Connects to a peer by the ``attributes`` that it has for us. Both ends must, before data flows.

        It need not wait until the connection stands: a put before that is sent once it does.
        """

    def put(self, peer: int, region: int, offset: int, data: memoryview, tag: int) -> int:
        """Starts a put and returns its ticket. ``data`` must not change until its ``Done``.

        It is copied once at most, into frames: a transport that can places it without another copy.
        """

    def turn(self, until_ns: int | None, others: Collection[int] = ()) -> Collection[int]:
        """Works until something came in or was due, and returns which of ``others`` (fds) are readable.

        Returns at ``until_ns`` (CLOCK_MONOTONIC) at the latest; None waits without end.
        """

    def events(self) -> list[ChannelEvent]:
        """What has come about since the last call, in order."""

    def bytes_delivered(self) -> int:
        """Payload that has been placed in our memory so far, each byte once."""

    def counters(self) -> dict[str, int]:
        """What the transport counted over all peers.

        At least ``sent_packets`` and ``retransmitted_packets`` where the transport can tell.
        """

    def event_columns(self) -> dict[str, list[int]]:
        """What a transport tells of that happened, a column each; times are CLOCK_MONOTONIC ns.

        The same everywhere: ``lost_ns``, when a packet was taken for lost, and with it ``lost_sent_ns``, when
        it had been sent, and ``lost_ev``; ``retired_ns``, when a path was given up, and ``retired_ev``;
        ``restored_ns`` and ``restored_ev``.
        """

    def save_log(self, path: Path) -> int:
        """Writes what the transport did to a file, a JSON object per line; returns how many lines."""

    def close(self) -> None:
        """Closes it. What was in flight is lost."""
