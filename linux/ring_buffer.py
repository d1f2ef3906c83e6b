"""Read the records that a BPF program sends: the kernel's ring buffer (BPF_MAP_TYPE_RINGBUF), by mmap.

The layout is that of kernel/bpf/ringbuf.c: a page with the consumer's position, a page with the producer's
position, then the data. The data is mapped twice in a row, so that no record is split at the end of the
buffer. A record has a header of 8 bytes: its length, two flags and a page offset.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator

import numpy as np

_BUSY, _DISCARD, _LENGTH = 1 << 31, 1 << 30, (1 << 30) - 1
RECORD_HEADER = 8


class RingReader:
    """Read the records of a ring buffer of `size` bytes."""

    def __init__(self, fd: int, size: int) -> None:
        page = mmap.PAGESIZE
        self._mask = size - 1
        self._consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        self._producer = mmap.mmap(fd, page + 2 * size, mmap.MAP_SHARED, mmap.PROT_READ, offset=page)
        # The kernel uses the positions at the same time, so each must be read and written in one access. A
        # cast memoryview does that. struct.pack_into would write zeros first, and with the consumer's
        # position at 0 the kernel would see a full ring.
        self._taken = memoryview(self._consumer).cast("Q")
        self._come = memoryview(self._producer).cast("Q")

    def records(self) -> Iterator[bytes]:
        """Return the records since the last call. Do not wait."""
        at = self._taken[0]
        while at < self._come[0]:
            start = mmap.PAGESIZE + (at & self._mask)
            (head,) = struct.unpack_from("=I", self._producer, start)
            if head & _BUSY:
                return
            length = head & _LENGTH
            if not head & _DISCARD:
                yield self._producer[start + RECORD_HEADER : start + RECORD_HEADER + length]
            at += (length + RECORD_HEADER + 7) & ~7
            self._taken[0] = at

    def pieces(self, record_bytes: int) -> Iterator[memoryview]:
        """Return the records since the last call in pieces of many records. All records must be equally long.

        A piece has records as in the ring, each with its header; ``record_bytes`` includes the header. A
        piece is valid until the next piece is read.
        """
        at, end = self._taken[0], self._come[0]
        start = mmap.PAGESIZE + (at & self._mask)
        with memoryview(self._producer) as memory, memory[start : start + end - at] as piece:
            heads = np.frombuffer(piece, np.uint8).reshape(-1, record_bytes)[:, :4].copy().view("<u4")[:, 0]
            busy = np.flatnonzero(heads & _BUSY)
            whole = int(busy[0]) if len(busy) else len(heads)
            if whole:
                with piece[: whole * record_bytes] as ready:
                    yield ready
                self._taken[0] = at + whole * record_bytes

    def close(self) -> None:
        """Unmap the memory."""
        self._taken.release()
        self._come.release()
        self._consumer.close()
        self._producer.close()
