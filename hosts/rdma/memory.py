"""Memory regions: what a peer may write, named by rkey.

A payload goes straight from the frame to its place in the region when it arrives, in whatever order [P1
§2.1]; there is no reassembly queue anywhere in this core.
"""

from __future__ import annotations

import random
from enum import IntFlag
from typing import Final

_PAGE: Final = 1 << 12
_FIRST_ADDRESS: Final = 1 << 32


class Access(IntFlag):
    """What remote peers may do with a region."""

    NONE = 0
    REMOTE_WRITE = 1


class MemoryRegion:
    """A registered buffer: bytes `address` to `address + length` of the address space peers write to."""

    __slots__ = ("access", "address", "length", "rkey", "view", "writable")

    def __init__(self, buffer: bytearray | memoryview, address: int, rkey: int, access: Access) -> None:
        view = memoryview(buffer)
        self.view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        self.address = address
        self.length = len(self.view)
        self.rkey = rkey
        self.access = access
        self.writable = bool(access & Access.REMOTE_WRITE)


class MemoryTable:
    """The regions of one NIC, by rkey.

    Addresses are the core's own, page aligned and with an unmapped page between regions, so that a write past
    the end of one never lands in another.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_address = _FIRST_ADDRESS
        self.regions: dict[int, MemoryRegion] = {}

    def register(self, buffer: bytearray | memoryview, access: Access) -> MemoryRegion:
        """Register `buffer` (writable, contiguous) and return its region with a fresh, random rkey."""
        if access & Access.REMOTE_WRITE and memoryview(buffer).readonly:
            raise ValueError("a region that peers may write needs a writable buffer")
        rkey = self._rng.getrandbits(32)
        while rkey in self.regions:
            rkey = self._rng.getrandbits(32)
        region = MemoryRegion(buffer, self._next_address, rkey, access)
        self._next_address += (region.length + 2 * _PAGE - 1) // _PAGE * _PAGE + _PAGE
        self.regions[rkey] = region
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Forget a region; later writes to it are access errors."""
        self.regions.pop(region.rkey, None)
