"""The cell of a port's queue, which the server fills in and the program updates."""

from __future__ import annotations

import struct
from dataclasses import dataclass

# The standard metadata of a queue; egress_global_timestamp is when a frame leaves its queue.
QUEUE_FIELDS = ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth")

SLOTS = 1024  # frames with a computed time of departure; the depth is at most one less
SLOTS_LOG = SLOTS.bit_length() - 1
# Offsets in a cell; a lock comes first. The cost of a byte is in 2^-20 ns.
CELL_COUNT, CELL_BYTE_COST, CELL_BURST, CELL_LIMIT = 4, 8, 16, 24
CELL_LEAST, CELL_OVERHEAD, CELL_WHOLE = 28, 32, 36
CELL_ROOM, CELL_HORIZON, CELL_LEAVE = 40, 48, 56
CELL_SIZE = CELL_LEAVE + 8 * SLOTS
COST_FRACTION_BITS = 20
FOREVER_NS = 1 << 62


@dataclass(frozen=True)
class Shape:
    """The parameters of a queue.

    Frames leave at `rate` bytes a second, each counted with `overhead` bytes more and as `least` bytes at
    least; what the rate gives in `burst_ns` may leave at once. With `whole` there must be tokens for all of a
    frame, else for some of it. A frame is lost if `limit` frames wait, or if the wait would exceed `room_ns`.
    """

    rate: int
    burst_ns: int
    whole: bool = True
    limit: int = SLOTS - 1
    room_ns: int = FOREVER_NS
    overhead: int = 0
    least: int = 0

    def encode(self) -> bytes:
        """Return the cell of an empty queue."""
        out = bytearray(CELL_SIZE)
        struct.pack_into(
            "=QQIIII",
            out,
            CELL_BYTE_COST,
            (10**9 << COST_FRACTION_BITS) // max(self.rate, 1),
            self.burst_ns,
            min(self.limit, SLOTS - 1),
            self.least,
            self.overhead,
            self.whole,
        )
        struct.pack_into("=Q", out, CELL_ROOM, self.room_ns)
        return bytes(out)
