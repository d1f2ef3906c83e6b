"""The sender's scoreboard: packets in flight, acknowledged ones, and lost ones that wait to be sent again.

It keeps a ring of send records, so that its work follows what changed and not the width of the window.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.evs.ev import Ev
from mrclab.hosts.mrc.outstanding.send_queue import WorkRequest

_FIRST_RING: Final = 64
"""Records that a ring has room for at first; it doubles when more PSNs are unacknowledged."""


# Nothing that a packet refers to refers back to it, so the garbage collector need not look at it.
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
        """Of its payload in the message, bytes."""
        self.length = length
        """Of its payload, bytes."""
        self.tries = tries
        """Transmissions before this one."""
        self.previous = previous
        """The transmission before this one; it has none itself."""
        self.by_window = False
        """It counted as lost by the reordering window alone. If it was not lost, the window was too short; a
        loss for another reason (EV retired, port down, timeout) shows nothing about the window."""


class Scoreboard:
    """The sender's view: packets in flight, acknowledged ones, and lost ones that wait to be sent again."""

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
        """Lowest PSN not acknowledged."""
        self.next_psn = first_psn
        self.inflight_bytes = 0
        self.inflight_packets = 0

    def current(self, psn: int) -> SentPacket | None:
        """Return the transmission of `psn` that is in flight, if there is one."""
        if self.una <= psn < self.next_psn:
            return self._ring[psn & self._mask]
        return None

    def on_sent(self, packet: SentPacket) -> None:
        """Note a transmission, first or repeated."""
        psn = packet.psn
        if psn - self.una > self._mask:
            self._grow(psn)
        self._ring[psn & self._mask] = packet
        if psn >= self.next_psn:
            self.next_psn = psn + 1
        self.inflight_bytes += packet.length
        self.inflight_packets += 1

    def _grow(self, psn: int) -> None:
        """Make room for a PSN."""
        old, mask = self._ring, self._mask
        size = 1 << (psn - self.una).bit_length()
        self._ring = [None] * size
        self._mask = size - 1
        for known in range(self.una, self.next_psn):
            self._ring[known & self._mask] = old[known & mask]

    def on_lost(self, packet: SentPacket) -> None:
        """Take a packet out of flight and queue it for retransmission."""
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
        """Remove what `oldest_lost` returned, because it is being sent."""
        heappop(self._heap)
        del self.lost[packet.psn]

    def apply_sack(self, cack: int, base: int, bitmap: int) -> tuple[list[SentPacket], list[SentPacket]]:
        """Take in a SACK (unbounded PSNs); return the newly acknowledged packets: the ones in flight, and the
        ones that counted as lost.
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
        """Return whether a cumulative PSN that is the present one says that an acknowledgement was false."""
        unfinished = self.una < self.next_psn and not self.inflight_packets and not self.lost
        return unfinished or cack + 1 < self.una

    def in_flight(self) -> list[SentPacket]:
        """Return the packets in flight, by PSN."""
        return [
            p for psn in range(self.una, self.next_psn) if (p := self._ring[psn & self._mask]) is not None
        ]

    def clear(self) -> None:
        """Drop everything, as a QP in error does."""
        self._ring = [None] * len(self._ring)
        self._heap.clear()
        self.lost.clear()
        self._sacked = 0
        self.una = self.next_psn
        self.inflight_bytes = self.inflight_packets = 0
