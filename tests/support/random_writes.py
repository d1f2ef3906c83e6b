"""Common parts of tests with random schedules: messages to write, overlapping faults, and the final check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from mrclab.hosts.mrc import Endpoint
from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted, Status
from mrclab.hosts.rdma.memory import MemoryRegion


class PostedAtOnce(Protocol):
    """Messages that are posted together: the length of each message, and whether it has immediate data."""

    @property
    def at_ns(self) -> int: ...

    @property
    def messages(self) -> tuple[tuple[int, bool], ...]: ...


class Writes:
    """All messages that one endpoint writes to another over a connection, and the check that they arrived."""

    def __init__(
        self,
        sender: Endpoint,
        qpn: int,
        receiver: Endpoint,
        remote: int,
        bursts: Sequence[PostedAtOnce],
        randbytes: Callable[[int], bytes],
    ) -> None:
        self._sender, self._qpn = sender, qpn
        self._receiver, self._remote = receiver, remote
        self._bursts = bursts
        self.messages = [message for burst in bursts for message in burst.messages]
        self._data = randbytes(sum(length for length, _ in self.messages))
        self._region: MemoryRegion = receiver.register_memory(bytearray(len(self._data)))

    def posters(self) -> Iterator[tuple[int, Callable[[], None]]]:
        """Yield the time of each burst, and the function that posts it."""
        number = offset = 0
        for burst in self._bursts:
            yield burst.at_ns, self._poster(number, offset, burst.messages)
            number += len(burst.messages)
            offset += sum(length for length, _ in burst.messages)

    def _poster(self, number: int, offset: int, messages: Sequence[tuple[int, bool]]) -> Callable[[], None]:
        def post() -> None:
            at = offset
            for n, (length, immediate) in enumerate(messages, number):
                self._sender.post_write(
                    self._qpn,
                    n,
                    memoryview(self._data)[at : at + length],
                    self._region.address + at,
                    self._region.rkey,
                    imm=n if immediate else None,
                )
                at += length

        return post

    def check(self, sent: Iterable[Event], received: Iterable[Event]) -> None:
        """Check that every message completed once and in order, and that every byte was placed once.

        ``sent`` and ``received`` are all events of the two ends, including those of other connections.
        """
        completed = [e for e in sent if isinstance(e, SendCompleted) and e.qpn == self._qpn]
        wanted = [(n, Status.SUCCESS, length) for n, (length, _) in enumerate(self.messages)]
        assert [(e.wr_id, e.status, e.length_bytes) for e in completed] == wanted
        got = [e for e in received if isinstance(e, ReceiveCompleted) and e.qpn == self._remote]
        expected = [(n, length) for n, (length, immediate) in enumerate(self.messages) if immediate]
        assert [(e.imm, e.length_bytes) for e in got] == expected
        assert [e.rqmsn for e in got] == [n & 0xFFFF for n in range(len(expected))]
        # The bytes are compared first, because pytest would take minutes to show how megabytes differ.
        right = bytes(self._region.view) == self._data
        assert right, "the bytes are not those that were written"
        theirs = self._receiver.qp_counters(self._remote)
        assert theirs.bytes_placed == len(self._data), "every byte was placed once, none twice"
        mine = self._sender.qp_counters(self._qpn)
        assert mine.inflight_bytes == 0
        assert mine.bytes_acked <= len(self._data)


class Overlaps:
    """Faults that overlap in time. A place is mended when the last of its overlapping faults ends."""

    def __init__(self) -> None:
        self._held: Counter[tuple[object, ...]] = Counter()

    def of(
        self, place: tuple[object, ...], breaks: Callable[[], object], mends: Callable[[], object]
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return the functions to call when a fault at ``place`` begins and when it ends."""

        def begin() -> None:
            self._held[place] += 1
            if self._held[place] == 1:
                breaks()

        def end() -> None:
            self._held[place] -= 1
            if not self._held[place]:
                mends()

        return begin, end
