"""The receiver's bitmap of arrived PSNs: one integer, so that the work follows what changed.

`windows` cuts from it the 64-bit pieces that SACKs carry.
"""

from __future__ import annotations

from mrclab.hosts.rdma.psn import expand, trailing_ones


class ReceiverBitmap:
    """Which PSNs have arrived, and which of those no SACK has reported yet."""

    __slots__ = ("_unreported", "bits", "expected", "highest", "mpr")

    def __init__(self, first_psn: int, mpr: int) -> None:
        self.mpr = mpr
        self.expected = first_psn
        """Lowest PSN that has not arrived: cack + 1."""
        self.bits = 0
        """Bit i set: `expected` + i has arrived."""
        self.highest = first_psn - 1
        self._unreported = 0

    def locate(self, wire_psn: int) -> int:
        """Return the unbounded PSN of one from the wire."""
        return expand(wire_psn, self.expected)

    def is_new(self, psn: int) -> bool:
        """Return whether a PSN inside the window has not arrived before."""
        return psn >= self.expected and not self.bits >> (psn - self.expected) & 1

    def add(self, psn: int) -> None:
        """Note the arrival of a new PSN inside the window."""
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
        """Return (sack_offset, bitmap) of the SACKs that report everything new to the sender; at least one.

        The usual one ends at the highest PSN, so consecutive SACKs overlap and the loss of one loses no
        information. PSNs below it that were never reported get separate SACKs.
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
