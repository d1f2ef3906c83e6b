"""Memory regions: the memory that a peer may write to, named by rkey.

A payload is copied from the frame to its place in the region when the frame arrives. Frames may arrive in any
order [P1 §2.1], and there is no reassembly queue.
"""

from __future__ import annotations

import random
from enum import IntFlag
from typing import Final, Protocol

_PAGE: Final = 1 << 12
_FIRST_ADDRESS: Final = 1 << 32
_NOWHERE: Final = memoryview(b"")


class Access(IntFlag):
    """What peers may do with a region."""

    NONE = 0
    REMOTE_WRITE = 1


class Place(Protocol):
    """Memory for payloads: a buffer of this process, or the memory of another process."""

    def __setitem__(self, where: slice, data: bytes | memoryview, /) -> None:
        """Write bytes. Raise OSError if the memory no longer exists."""


class MemoryRegion:
    """Registered memory. Peers write to its `length` bytes at the addresses from `address` on."""

    __slots__ = ("access", "address", "length", "registered", "rkey", "view", "writable")

    def __init__(self, view: Place, address: int, length: int, rkey: int, access: Access) -> None:
        self.view = view
        self.address = address
        self.length = length
        self.rkey = rkey
        self.access = access
        self.writable = bool(access & Access.REMOTE_WRITE)
        self.registered = True


class MemoryTable:
    """The regions of one NIC, by rkey.

    The table chooses page-aligned addresses and leaves an unmapped page between regions. So a write beyond
    the end of a region never reaches another region.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._next_address = _FIRST_ADDRESS
        self.regions: dict[int, MemoryRegion] = {}

    def register(self, buffer: bytearray | memoryview, access: Access) -> MemoryRegion:
        """Register `buffer` (writable, contiguous) and return its region with a new, random rkey."""
        if access & Access.REMOTE_WRITE and memoryview(buffer).readonly:
            raise ValueError("a region that peers may write needs a writable buffer")
        view = memoryview(buffer)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        region = self.register_at(view, self._next_address, len(view), access)
        self._next_address += (region.length + 2 * _PAGE - 1) // _PAGE * _PAGE + _PAGE
        return region

    def register_at(self, place: Place, address: int, length: int, access: Access) -> MemoryRegion:
        """Register memory at an address that its owner chooses, with a new, random rkey.

        If `place` raises OSError on a write, the queue pair ends with a remote operation error.
        """
        rkey = self._rng.getrandbits(32)
        while rkey in self.regions:
            rkey = self._rng.getrandbits(32)
        region = MemoryRegion(place, address, length, rkey, access)
        self.regions[rkey] = region
        return region

    def deregister(self, region: MemoryRegion) -> None:
        """Remove a region; later writes to it are access errors."""
        region.registered = False
        region.view = _NOWHERE  # Now the owner can release the memory.
        self.regions.pop(region.rkey, None)
