"""The unfinished work of a sender: the queue of writes, and the packets in flight or lost.

Writes complete in the order of posting. At most `max_imms` writes with immediate are in flight at a time. The
scoreboard has the packets in flight by PSN, and the lost packets that wait for retransmission. The scoreboard
is a ring of send records, so its cost does not depend on the width of the window. `SendOrder` has the packets
in the order in which they were sent.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.evs.ev import Ev


class WorkRequest:
    """One posted write."""

    __slots__ = ("data", "imm", "last_psn", "length", "msn", "offset", "rkey", "rqmsn", "va", "wr_id")

    def __init__(
        self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None, msn: int, rqmsn: int
    ) -> None:
        self.wr_id = wr_id
        self.data = data
        self.length = len(data)
        self.va = va
        self.rkey = rkey
        self.imm = imm
        self.msn = msn
        self.rqmsn = rqmsn
        self.offset = 0
        """Number of bytes that are already split into packets."""
        self.last_psn = -1
        """PSN of the last packet; -1 before it is sent."""


_NEVER_POSTED: Final[deque[WorkRequest]] = deque()
"""One empty queue for all QPs that have posted nothing yet, because a deque takes 760 bytes."""


class SendQueue:
    """The posted writes of one queue pair."""

    def __init__(self, max_imms: int) -> None:
        self.max_imms = max_imms
        self.first: WorkRequest | None = None
        """The first write that still has bytes to send."""
        self._to_send = _NEVER_POSTED
        """The write `first` and all later writes."""
        self.open = _NEVER_POSTED
        """The writes that are not complete."""
        self._imms = 0
        """Number of WRITE_IMMs that have started and are not complete."""
        self._msn = 0
        self._rqmsn = 0

    def post(self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None) -> None:
        """Queue a write."""
        if self.open is _NEVER_POSTED:
            self._to_send, self.open = deque(), deque()
        request = WorkRequest(wr_id, data, va, rkey, imm, self._msn, self._rqmsn)
        self._msn = (self._msn + 1) & 0xFFFF
        if imm is not None:
            self._rqmsn = (self._rqmsn + 1) & 0xFFFF
        self._to_send.append(request)
        if self.first is None:
            self.first = request
        self.open.append(request)

    def may_begin(self, request: WorkRequest) -> bool:
        """Return whether the next packet of a write may be sent.

        The first packet must wait if the write has an immediate, and too many immediates are in flight.
        """
        return request.imm is None or request.offset > 0 or self._imms < self.max_imms

    def begin(self, request: WorkRequest) -> None:
        """Record that the first packet of a write was sent."""
        if request.imm is not None:
            self._imms += 1

    def end_first(self) -> None:
        """Record that the last packet of `self.first` was sent."""
        waiting = self._to_send
        waiting.popleft()
        self.first = waiting[0] if waiting else None

    def complete(self, una: int) -> list[WorkRequest]:
        """Remove and return the writes that are complete: all their PSNs are below `una`."""
        done: list[WorkRequest] = []
        requests = self.open
        while requests and 0 <= requests[0].last_psn < una:
            request = requests.popleft()
            if request.imm is not None:
                self._imms -= 1
            done.append(request)
        return done

    def holder(self, psn: int | None) -> WorkRequest | None:
        """Return the incomplete write that this PSN belongs to; None if there is none."""
        if psn is not None:
            for request in self.open:
                if request.last_psn < 0 or psn <= request.last_psn:
                    return request
        return None

    def clear(self) -> list[WorkRequest]:
        """Remove all writes; return the incomplete ones."""
        left = list(self.open)
        self.open.clear()
        self._to_send.clear()
        self.first = None
        return left


_FIRST_RING: Final = 64
"""Size of a new ring, in records. If more PSNs are unacknowledged, the size is doubled."""
_KEPT: Final = 64
"""Smallest number of old entries that `SendOrder` deletes at once from the beginning of its list."""


# A packet is never part of a cycle of references, so the garbage collector need not track it.
@mypyc_attr(acyclic=True)
class SentPacket:
    """One transmission of one PSN."""

    __slots__ = ("by_window", "ev", "length", "offset", "previous", "psn", "request", "sent_ns", "tries")

    def __init__(
        self,
        psn: int,
        sent_ns: int,
        ev: Ev,
        request: WorkRequest,
        offset: int,
        length: int,
        tries: int,
        previous: SentPacket | None,
    ) -> None:
        self.psn = psn
        self.sent_ns = sent_ns
        self.ev = ev
        self.request = request
        self.offset = offset
        """Offset of the payload in the message, bytes."""
        self.length = length
        """Length of the payload, bytes."""
        self.tries = tries
        """Number of earlier transmissions of this PSN."""
        self.previous = previous
        """The transmission before this one. Only the last two transmissions are kept, to limit memory."""
        self.by_window = False
        """True: the reordering window was the only reason to count the packet as lost. If the packet arrives,
        the window was too short. Other losses (EV retired, port down, timeout) do not depend on it."""


class Scoreboard:
    """The packets of a sender: packets in flight, and lost packets that wait for retransmission."""

    __slots__ = (
        "_heap",
        "_mask",
        "_ring",
        "_sacked",
        "inflight_bytes",
        "inflight_packets",
        "lost",
        "next_psn",
        "una",
    )

    def __init__(self, first_psn: int, mpr: int) -> None:
        size = min(_FIRST_RING, 1 << (mpr - 1).bit_length())
        self._ring: list[SentPacket | None] = [None] * size
        self._mask = size - 1
        self._sacked = 0
        self._heap: list[int] = []
        self.lost: dict[int, SentPacket] = {}
        """Lost packets that wait for retransmission, by PSN."""
        self.una = first_psn
        """Lowest PSN that is not acknowledged."""
        self.next_psn = first_psn
        self.inflight_bytes = 0
        self.inflight_packets = 0

    def current(self, psn: int) -> SentPacket | None:
        """Return the transmission of `psn` that is in flight, if there is one."""
        if self.una <= psn < self.next_psn:
            return self._ring[psn & self._mask]
        return None

    def on_sent(self, packet: SentPacket) -> None:
        """Record a first transmission or a retransmission."""
        psn = packet.psn
        if psn - self.una > self._mask:
            self._grow(psn)
        self._ring[psn & self._mask] = packet
        if psn >= self.next_psn:
            self.next_psn = psn + 1
        self.inflight_bytes += packet.length
        self.inflight_packets += 1

    def _grow(self, psn: int) -> None:
        old, mask = self._ring, self._mask
        size = 1 << (psn - self.una).bit_length()
        self._ring = [None] * size
        self._mask = size - 1
        for known in range(self.una, self.next_psn):
            self._ring[known & self._mask] = old[known & mask]

    def on_lost(self, packet: SentPacket) -> None:
        """No longer count a packet as in flight, and queue it for retransmission."""
        psn = packet.psn
        self._ring[psn & self._mask] = None
        self.inflight_bytes -= packet.length
        self.inflight_packets -= 1
        self.lost[psn] = packet
        heappush(self._heap, psn)

    def oldest_lost(self) -> SentPacket | None:
        """Return the lost packet with the lowest PSN."""
        while self._heap:
            packet = self.lost.get(self._heap[0])
            if packet is not None:
                return packet
            heappop(self._heap)
        return None

    def take_lost(self, packet: SentPacket) -> None:
        """Remove the packet that `oldest_lost` returned, because it is sent now."""
        heappop(self._heap)
        del self.lost[packet.psn]

    def apply_sack(self, cack: int, base: int, bitmap: int) -> tuple[list[SentPacket], list[SentPacket]]:
        """Apply a SACK (PSNs without wrap-around) and return the newly acknowledged packets.

        The first list has the packets that were in flight, the second list the packets that counted as lost.
        """
        ring, mask = self._ring, self._mask
        acked: list[SentPacket] = []
        found: list[SentPacket] = []
        una = self.una
        if cack >= una:
            advance = cack + 1 - una
            for psn in range(una, cack + 1):
                packet = ring[psn & mask]
                if packet is not None:
                    ring[psn & mask] = None
                    acked.append(packet)
            if self.lost:
                found = [self.lost.pop(psn) for psn in sorted(self.lost) if psn <= cack]
            self._sacked >>= advance
            self.una = una = cack + 1
        if bitmap:
            shift = base - una
            bits = bitmap << shift if shift >= 0 else bitmap >> -shift
            new = bits & ~self._sacked & ((1 << (self.next_psn - una)) - 1)
            self._sacked |= new
            while new:
                low = new & -new
                new ^= low
                psn = una + low.bit_length() - 1
                packet = ring[psn & mask]
                if packet is not None:
                    ring[psn & mask] = None
                    acked.append(packet)
                elif psn in self.lost:
                    found.append(self.lost.pop(psn))
        if acked:
            total = 0
            for packet in acked:
                total += packet.length
            self.inflight_bytes -= total
            self.inflight_packets -= len(acked)
        return acked, found

    def contradicts(self, cack: int) -> bool:
        """Return whether a SACK with this cumulative PSN shows that an earlier acknowledgement was false."""
        unfinished = self.una < self.next_psn and not self.inflight_packets and not self.lost
        return unfinished or cack + 1 < self.una

    def in_flight(self) -> list[SentPacket]:
        """Return the packets in flight, in the order of their PSNs."""
        return [
            p for psn in range(self.una, self.next_psn) if (p := self._ring[psn & self._mask]) is not None
        ]

    def clear(self) -> None:
        """Remove all packets: the QP is in error."""
        self._ring = [None] * len(self._ring)
        self._heap.clear()
        self.lost.clear()
        self._sacked = 0
        self.una = self.next_psn
        self.inflight_bytes = self.inflight_packets = 0


class SendOrder:
    """Transmissions, oldest first. Methods skip entries that are not in flight any more.

    The class uses a list and the index of the first entry: compiled code reads a list faster than a deque.
    """

    __slots__ = ("_board", "_first", "_limit", "_packets", "_scanned")

    def __init__(self, board: Scoreboard, mpr: int) -> None:
        """Start without transmissions. The sender has at most `mpr` packets in flight."""
        self._board = board
        self._limit = 4 * mpr
        """Largest number of entries."""
        self._packets: list[SentPacket | None] = []
        self._first = 0
        self._scanned = 0
        """Index at which `take_retired` continues."""

    def add(self, packet: SentPacket) -> None:
        """Record a transmission."""
        if len(self._packets) >= self._limit:
            self._compact()
        self._packets.append(packet)

    def _compact(self) -> None:
        """Remove every transmission that is not in flight, at any position.

        `oldest` also removes such entries at the beginning of the list, but runs only when a SACK arrives. If
        a peer sends only NACKs, the list would grow without this method.
        """
        board = self._board
        kept: list[SentPacket | None] = []
        scanned = 0
        for at in range(self._first, len(self._packets)):
            packet = self._packets[at]
            if packet is not None and board.current(packet.psn) is packet:
                kept.append(packet)
                if at < self._scanned:
                    scanned += 1
        self._packets = kept
        self._first = 0
        self._scanned = scanned

    def oldest(self) -> SentPacket | None:
        """Return the oldest transmission in flight, and remove all entries before it."""
        packets, board = self._packets, self._board
        at, end = self._first, len(self._packets)
        found: SentPacket | None = None
        while at < end:
            packet = packets[at]
            if packet is not None:
                if board.current(packet.psn) is packet:
                    found = packet
                    break
                packets[at] = None  # Now Python can free the message of this packet.
            at += 1
        if at > _KEPT and 2 * at > end:
            del packets[:at]
            self._scanned -= at
            at = 0
        self._first = at
        return found

    def drop_oldest(self) -> None:
        """Remove the transmission that `oldest` returned."""
        self._packets[self._first] = None
        self._first += 1

    def newest(self) -> SentPacket | None:
        """Return the newest transmission in flight."""
        for at in range(len(self._packets) - 1, self._first - 1, -1):
            packet = self._packets[at]
            if packet is not None and self._board.current(packet.psn) is packet:
                return packet
        return None

    def rescan(self) -> None:
        """Let `take_retired` search from the start again, because another EV was retired."""
        self._scanned = 0

    def take_retired(self, before_ns: int) -> list[SentPacket]:
        """Remove and return packets sent before `before_ns` whose EV was later retired for a loss.

        Each transmission is checked only once. After `rescan`, all transmissions are checked again.
        """
        found: list[SentPacket] = []
        packets, board = self._packets, self._board
        at = max(self._scanned, self._first)
        while at < len(packets):
            packet = packets[at]
            if packet is not None:
                if packet.sent_ns >= before_ns:
                    break
                if packet.sent_ns < packet.ev.retired_ns and board.current(packet.psn) is packet:
                    found.append(packet)
                    packets[at] = None
            at += 1
        self._scanned = at
        return found

    def clear(self) -> None:
        """Remove all entries."""
        self._packets = []
        self._first = self._scanned = 0
