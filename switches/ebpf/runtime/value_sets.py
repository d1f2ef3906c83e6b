"""Parser value sets: how their members are stored in the kernel.

The BMv2 JSON does not give the match kinds (exact, ternary, ...) of a value set's fields. So every field of a
member is stored as a mask and a range; an exact value is a range of one value. One map value holds all
members, so all of them change at the same time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from mrclab.switches.ebpf.plan import PLACES_PER_FIELD, USED_BYTES, ValueSetLayout
from mrclab.switches.ebpf.runtime.transaction import Transaction


@dataclass(frozen=True)
class Ends:
    """The values that a field of a member matches: after the mask is applied, low..high including both."""

    mask: int
    low: int
    high: int


Member = tuple[Ends, ...]


def encode_members(layout: ValueSetLayout, members: Sequence[Member]) -> bytes | None:
    """Return the map value of a value set, or None for an empty set."""
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
    """The members of a value set. A change updates this object and adds its map update to `tx`."""

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
