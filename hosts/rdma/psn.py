"""Packet sequence numbers: 24 bits on the wire, unbounded integers inside.

A PSN counts data packets of one direction of one queue pair, whatever path each took [SPEC §7.4.4]. The wire
carries its low 24 bits. Inside the core PSNs are plain integers that never wrap, so ordinary comparison and
subtraction are right everywhere; only the edges (`& PSN_MASK`, `expand`) know about 24 bits.
"""

from typing import Final

PSN_BITS: Final = 24
PSN_MASK: Final = (1 << PSN_BITS) - 1
PSN_HALF: Final = 1 << (PSN_BITS - 1)


def expand(wire: int, near: int) -> int:
    """Return the unbounded PSN whose low 24 bits are `wire` and which lies closest to `near`."""
    return near + ((wire - near + PSN_HALF) & PSN_MASK) - PSN_HALF


def trailing_ones(bits: int) -> int:
    """Return how many of the lowest bits of `bits` are set without a gap."""
    return ((bits + 1) & ~bits).bit_length() - 1
