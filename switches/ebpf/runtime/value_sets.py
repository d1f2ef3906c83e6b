"""Parser value sets: how their members are stored in the kernel, and how a select looks a key up.

The JSON knows how wide a value set's fields are only from the selects that use it, and not their match
kinds, which a client gets from the P4Info. So every field of a member is stored as a mask and the ends of a
range: an exact one is a range of one value. All members are one value of a map, and change at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mrclab.switches.ebpf.plan import PLACES_PER_FIELD, USED_BYTES, ValueSetLayout
from mrclab.switches.ebpf.runtime.transaction import Transaction


@dataclass(frozen=True)
class Ends:
    """The values that a field of a member matches: low..high, of the bits in the mask."""

    mask: int
    low: int
    high: int


Member = tuple[Ends, ...]


def encode_members(layout: ValueSetLayout, members: Sequence[Member]) -> bytes | None:
    """Return the value of a value set's map, None for an empty set."""
    if not members:
        return None
    cell = USED_BYTES + PLACES_PER_FIELD * layout.key_size
    out = bytearray(cell * layout.size)
    for i, member in enumerate(members):
        struct.pack_into("=Q", out, i * cell, 1)
        for slot, ends in zip(layout.key, member, strict=True):
            for place, number in enumerate((ends.mask, ends.low, ends.high)):
                at = i * cell + USED_BYTES + place * layout.key_size + slot.offset
                out[at : at + slot.size] = number.to_bytes(slot.size, "little")
    return bytes(out)


class ValueSetState:
    """The members of a value set. Planning a change updates this view at once; the caller then applies it."""

    def __init__(self, layout: ValueSetLayout) -> None:
        self.layout = layout
        self.members: tuple[Member, ...] = ()

    def set(self, members: tuple[Member, ...], tx: Transaction) -> None:
        """Replace all members."""
        before, self.members = self.members, members

        def restore() -> None:
            self.members = before

        tx.on_undo(restore)
        if members or before:
            tx.change(self.layout.map, bytes(4), encode_members(self.layout, members), self._value)

    def _value(self) -> bytes | None:
        return encode_members(self.layout, self.members)
