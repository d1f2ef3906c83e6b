"""Messages from one rank of a group to another: send and receive, matched by rank and tag, in order.

Every rank has a region ``MAIL`` with some slots for each peer. The sender splits a message into pieces of the
size of a slot. It puts a piece whenever the receiver has a free slot. The receiver copies each piece out of
its slot at once. If the program has called `receive` for this message, the piece goes into the program's
memory, otherwise into a buffer. When half of the slots are free, the receiver returns them to the sender by a
put without data.

So a send is done when the message is in the receiver's memory, even if the program has not called `receive`.
A peer may send up to ``AHEAD_BYTES`` before the call of `receive`. Above this limit no slots are returned.
"""

from __future__ import annotations

import struct
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final

from mrclab.hosts.collectives.channel import TAG_BITS, Arrived, ChannelEvent, Done
from mrclab.hosts.collectives.collective_operations import FLAG_BYTES, FLAGS
from mrclab.hosts.collectives.communicator import Communicator, PutError

MAIL: Final = 3
"""The number of the region with the slots. The regions of the collectives have lower numbers."""
SLOTS: Final = 16
SLOT_BYTES: Final = 1 << 16
HALF: Final = SLOTS // 2
AHEAD_BYTES: Final = 64 << 20
HEADER: Final = struct.Struct("<qQ")
"""The header before each piece: the message's tag, and its length in bytes."""
PIECE_BYTES: Final = SLOT_BYTES - HEADER.size
FIRST_TAG: Final = (1 << TAG_BITS) - SLOTS - 2
"""The first tag for messages. Each slot has one tag; two more tags are for returned slots."""
RETURNED: Final = FIRST_TAG + SLOTS


@dataclass(slots=True, eq=False)
class _Sending:
    tag: int
    data: memoryview
    done: Future[None]
    posted_bytes: int = -1  # -1: no piece yet; a message of 0 bytes also has one piece
    under_way: int = 0

    @property
    def posted(self) -> bool:
        return self.posted_bytes == len(self.data)


@dataclass(slots=True, eq=False)
class _Receiving:
    peer: int | None
    tag: int
    place: memoryview
    done: Future[int]


@dataclass(slots=True, eq=False)
class _Message:
    """A message of which at least one piece has arrived."""

    peer: int
    tag: int
    size_bytes: int
    place: memoryview
    arrived_bytes: int = 0
    receiving: _Receiving | None = None


@dataclass(slots=True)
class _Peer:
    """The state of the messages to and from one peer."""

    queue: deque[_Sending] = field(default_factory=deque)
    free: int = SLOTS
    sent: int = 0
    """Number of pieces put to this peer."""
    read: int = 0
    """Number of pieces from this peer that were copied out of their slots, in order."""
    early: set[int] = field(default_factory=set)
    """Slots with pieces that arrived although an earlier piece is still missing."""
    returned: int = 0
    message: _Message | None = None
    """The message whose pieces are arriving."""


class PointToPoint:
    """The messages of one rank. Not safe for use from more than one thread."""

    def __init__(self, comm: Communicator) -> None:
        """Expose the slots. The regions of the collectives must be exposed already."""
        self._comm = comm
        comm.expose(comm.size * SLOTS * SLOT_BYTES)
        self._peers = [_Peer() for _ in range(comm.size)]
        self._tickets: dict[int, _Sending | None] = {}
        self._receiving: list[_Receiving] = []
        self._unclaimed: list[_Message] = []

    def send(self, peer: int, tag: int, data: memoryview, done: Future[None]) -> None:
        """Send bytes. The bytes must not change until the future ``done`` is done."""
        self._peers[peer].queue.append(_Sending(tag, data, done))
        self._post(peer)

    def receive(self, peer: int | None, tag: int, place: memoryview, done: Future[int]) -> None:
        """Place the next message with this tag from a peer, or from any peer if ``peer`` is None.

        The result of ``done`` is the peer's rank. If the message has another length, ``done`` fails with
        ValueError.
        """
        receiving = _Receiving(peer, tag, place, done)
        for message in self._unclaimed:
            if _fit(receiving, message):
                self._unclaimed.remove(message)
                place[: message.arrived_bytes] = message.place[: message.arrived_bytes][: len(place)]
                self._claim(message, receiving)
                self._return_slots(message.peer)
                return
        self._receiving.append(receiving)

    def take(self, event: ChannelEvent) -> bool:
        """Process an event. Return False if the event is not for messages. Raise PutError if a put failed."""
        if isinstance(event, Done):
            if event.ticket not in self._tickets:
                return False
            if event.error is not None:
                raise PutError(f"rank {self._comm.rank} gave up on rank {event.peer}: {event.error}")
            sending = self._tickets.pop(event.ticket)
            if sending is not None:
                sending.under_way -= 1
                if sending.posted and not sending.under_way:
                    sending.done.set_result(None)
            return True
        if event.tag < FIRST_TAG:
            return False
        if event.tag >= RETURNED:
            self._peers[event.peer].free += HALF
            self._post(event.peer)
        else:
            self._arrived(event)
        return True

    def fail(self, problem: Exception) -> None:
        """Fail all messages that are not done."""
        sending = {each.done for each in self._tickets.values() if each is not None}
        sending |= {each.done for peer in self._peers for each in peer.queue}
        claimed = [p.message.receiving for p in self._peers if p.message and p.message.receiving]
        futures: list[Future[Any]] = [*sending, *(each.done for each in (*self._receiving, *claimed))]
        self._tickets.clear()
        self._receiving.clear()
        for peer in self._peers:
            peer.queue.clear()
            peer.message = None
        for future in futures:
            future.set_exception(problem)

    def _post(self, number: int) -> None:
        """Put pieces of messages to a peer while the peer has free slots."""
        peer = self._peers[number]
        while peer.queue and peer.free:
            sending = peer.queue[0]
            start = max(0, sending.posted_bytes)
            part = sending.data[start : start + PIECE_BYTES]
            sending.posted_bytes = start + len(part)
            sending.under_way += 1
            if sending.posted:
                peer.queue.popleft()
            piece = bytearray(HEADER.size + len(part))
            HEADER.pack_into(piece, 0, sending.tag, len(sending.data))
            piece[HEADER.size :] = part
            slot = peer.sent % SLOTS
            peer.sent += 1
            peer.free -= 1
            at = _slot_offset(self._comm.rank, slot)
            ticket = self._comm.channel.put(number, MAIL, at, memoryview(piece), FIRST_TAG + slot)
            self._tickets[ticket] = sending

    def _arrived(self, event: Arrived) -> None:
        peer = self._peers[event.peer]
        peer.early.add(event.tag - FIRST_TAG)
        while (slot := peer.read % SLOTS) in peer.early:
            peer.early.remove(slot)
            peer.read += 1
            at = _slot_offset(event.peer, slot)
            self._read(event.peer, self._comm.regions[MAIL][at : at + SLOT_BYTES])
        self._return_slots(event.peer)

    def _read(self, number: int, piece: memoryview) -> None:
        """Copy the next piece of a peer out of its slot."""
        peer = self._peers[number]
        message = peer.message or self._begin(number, *HEADER.unpack_from(piece))
        at = message.arrived_bytes
        part = piece[HEADER.size :][: message.size_bytes - at]
        room = message.place[at : at + len(part)]
        room[:] = part[: len(room)]
        message.arrived_bytes += len(part)
        peer.message = message
        if message.arrived_bytes == message.size_bytes:
            peer.message = None
            if message.receiving is not None:
                _finish(message, message.receiving)

    def _begin(self, number: int, tag: int, size_bytes: int) -> _Message:
        message = _Message(number, tag, size_bytes, memoryview(b""))
        for receiving in self._receiving:
            if _fit(receiving, message):
                self._receiving.remove(receiving)
                message.receiving, message.place = receiving, receiving.place
                return message
        message.place = memoryview(bytearray(size_bytes))
        self._unclaimed.append(message)
        return message

    def _claim(self, message: _Message, receiving: _Receiving) -> None:
        message.receiving, message.place = receiving, receiving.place
        if message.arrived_bytes == message.size_bytes:
            _finish(message, receiving)

    def _return_slots(self, number: int) -> None:
        peer = self._peers[number]
        while peer.read - peer.returned >= HALF and self._ahead_bytes(number) <= AHEAD_BYTES:
            tag = RETURNED + peer.returned // HALF % 2
            peer.returned += HALF
            nothing = memoryview(bytes(FLAG_BYTES))  # the data is not used: the tag says that slots are free
            self._tickets[self._comm.channel.put(number, FLAGS, 0, nothing, tag)] = None

    def _ahead_bytes(self, number: int) -> int:
        return sum(each.arrived_bytes for each in self._unclaimed if each.peer == number)


def _slot_offset(rank: int, slot: int) -> int:
    return (rank * SLOTS + slot) * SLOT_BYTES


def _fit(receiving: _Receiving, message: _Message) -> bool:
    return receiving.tag == message.tag and receiving.peer in (None, message.peer)


def _finish(message: _Message, receiving: _Receiving) -> None:
    wanted = len(receiving.place)
    if message.size_bytes == wanted:
        receiving.done.set_result(message.peer)
        return
    text = f"rank {message.peer} sent {message.size_bytes} bytes with tag {message.tag}, not {wanted}"
    receiving.done.set_exception(ValueError(text))
