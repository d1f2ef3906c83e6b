"""The state of a receiver: the arrived PSNs, the incomplete messages, and the posted receives.

The bitmap of arrived PSNs is one integer. It begins at the lowest PSN that has not arrived. Each SACK
carries 64 bits of the bitmap (`windows`). Packets of a message arrive in any order. An option decides whether
WRITE_IMMs wait for earlier writes. Each WRITE_IMM consumes one posted receive [API, SPEC §6].
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mrclab.hosts.mrc.packets import DataPacket
from mrclab.hosts.rdma.frames import expand, trailing_ones


class ReceiverBitmap:
    """Which PSNs have arrived, and which of them no SACK has reported yet."""

    __slots__ = ("_unreported", "bits", "expected", "highest", "mpr")

    def __init__(self, first_psn: int, mpr: int) -> None:
        self.mpr = mpr
        self.expected = first_psn
        """Lowest PSN that has not arrived: cumulative acknowledgement + 1."""
        self.bits = 0
        """Bit i set: `expected` + i has arrived."""
        self.highest = first_psn - 1
        self._unreported = 0

    def locate(self, wire_psn: int) -> int:
        """Return the PSN without wrap-around for a 24-bit PSN of a packet."""
        return expand(wire_psn, self.expected)

    def is_new(self, psn: int) -> bool:
        """Return whether a PSN inside the window has not arrived before."""
        return psn >= self.expected and not self.bits >> (psn - self.expected) & 1

    def add(self, psn: int) -> None:
        """Record the arrival of a new PSN inside the window."""
        if psn == self.expected and not self.bits:
            self.expected = psn + 1
            if psn > self.highest:
                self.highest = psn
            return
        bit = 1 << (psn - self.expected)
        bits = self.bits | bit
        if psn > self.highest:
            self.highest = psn
        if bits & 1:
            run = trailing_ones(bits)
            self.expected += run
            self.bits = bits >> run
            self._unreported >>= run
            if psn >= self.expected:
                self._unreported |= bit >> run
        else:
            self.bits = bits
            self._unreported |= bit

    @property
    def out_of_order(self) -> int:
        """Number of PSNs above the cumulative acknowledgement that have arrived."""
        return self.bits.bit_count() if self.bits else 0

    def windows(self) -> list[tuple[int, int]]:
        """Return (sack_offset, bitmap) of the SACKs that report all new arrivals: at least one SACK.

        The first SACK ends at the highest PSN that has arrived, and reports up to 64 PSNs. So SACKs overlap:
        if a SACK is lost, later SACKs report the same PSNs. Lower PSNs that no SACK has reported yet are in
        additional SACKs.
        """
        base = max(self.expected, self.highest - 63)
        low = base - self.expected
        result = [(low + 1, self.bits >> low & 0xFFFFFFFFFFFFFFFF)]
        rest = self._unreported & ((1 << low) - 1)
        while rest:
            start = (rest & -rest).bit_length() - 1
            result.append((start + 1, self.bits >> start & 0xFFFFFFFFFFFFFFFF))
            rest = rest >> (start + 64) << (start + 64)
        self._unreported = 0
        return result


class Messages:
    """Which messages are complete, by MSN, and which WRITE_IMMs may be delivered, by RQMSN [P1 §2.1].

    This class is used if WRITE_IMMs do not wait for earlier writes. Otherwise the cumulative PSN is enough.
    """

    def __init__(self) -> None:
        self._missing: dict[int, int] = {}
        self._immediates: dict[int, tuple[int, int, int]] = {}
        self._whole: dict[int, tuple[int, int]] = {}
        self._next_rqmsn = 0

    def stashed(self) -> int:
        """Return how many WRITE_IMMs have arrived but are not delivered yet."""
        return len(self._immediates) + len(self._whole)

    def add(self, packet: DataPacket, single: bool) -> list[tuple[int, int, int]]:
        """Count a packet; return (imm, length, rqmsn) of the WRITE_IMMs to deliver.

        `single`: the packet is a whole message.
        """
        msn, length, dma_length = packet.msn, packet.length, packet.message_length
        imm, rqmsn = packet.imm, packet.rqmsn
        missing = self._missing.pop(msn, dma_length) - length
        if imm is not None:
            self._immediates[msn] = (imm, dma_length, rqmsn)
        if missing > 0:
            self._missing[msn] = missing
            return []
        if single and imm is None:
            return []
        done = self._immediates.pop(msn, None)
        if done is None:
            return []
        self._whole[done[2]] = (done[0], done[1])
        ready: list[tuple[int, int, int]] = []
        while (entry := self._whole.pop(self._next_rqmsn, None)) is not None:
            ready.append((entry[0], entry[1], self._next_rqmsn))
            self._next_rqmsn = (self._next_rqmsn + 1) & 0xFFFF
        return ready


class ReceiveQueue:
    """The receives of one queue pair, oldest first."""

    __slots__ = ("_posted", "_refill", "_taken", "required")

    def __init__(self, *, required: bool, refill: Callable[[], None] | None = None) -> None:
        """Start without receives. `refill` is called if too few receives are left, and may add receives."""
        self.required = required
        """True: a WRITE with immediate needs a receive. False: it needs none."""
        self._posted: deque[int] = deque()
        self._refill = refill
        self._taken = 0

    def post(self, wr_id: int) -> None:
        """Add a receive."""
        self._posted.append(wr_id)

    def lacking(self, rqmsn: int, waiting: int) -> bool:
        """Return True if too few receives are left for the immediate of this RQMSN and all earlier ones.

        `waiting` immediates have arrived and are not delivered yet. Each of them will also take a receive,
        even if a faulty peer gave several of them the same RQMSN.
        """
        if not self.required:
            return False
        due_before = max(rqmsn - self._taken & 0xFFFF, waiting)
        if len(self._posted) <= due_before and self._refill is not None:
            self._refill()
        return len(self._posted) <= due_before

    def take(self) -> int | None:
        """Consume the oldest receive and return its number. Return None if immediates need no receive."""
        if not self.required:
            return None
        self._taken += 1
        return self._posted.popleft()

    def clear(self) -> list[int]:
        """Remove all receives and return their numbers."""
        left = list(self._posted)
        self._posted.clear()
        return left
