"""The packets of the last seconds at a host's NIC, for the times of a fault that somebody just made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import gettempdir

import numpy as np

from mrclab.experiments.live.captures.tap import RECORD, SNAP_BYTES, Tap, pcap_records
from mrclab.experiments.measure.pcap import LINKTYPE_LINUX_SLL2, Packets, file_header, parse_pcap
from mrclab.experiments.measure.tcp_capture import parse_segments
from mrclab.experiments.measure.tcp_trace import Segments

RING_BYTES = 8 << 20
NAME = "the live capture"
IDLE_NS = 2_000_000_000
"""The time kept while no fault waits for its times."""
MOST_NS = 12_000_000_000
"""The time kept while one does."""


class Pieces:
    """Records in the order in which they came: those since a moment, and never more than so many bytes.

    One thread adds; others may read and set ``since_ns``.
    """

    def __init__(self, most_bytes: int) -> None:
        self.since_ns: int | None = None
        """From when on records are wanted (monotonic); None: those of the last `IDLE_NS` are enough."""
        self.held_bytes = 0
        self._most_bytes = most_bytes
        self._dropped_ns = -1
        self._pieces: deque[tuple[int, bytes]] = deque()

    def add(self, now_ns: int, piece: bytes) -> None:
        """Keep records that were taken just now."""
        self._pieces.append((now_ns, piece))
        self.held_bytes += len(piece)
        self.forget(now_ns)

    def forget(self, now_ns: int) -> None:
        """Drop unwanted packets, and the oldest if there are too many."""
        idle_ns = now_ns - IDLE_NS
        since_ns = idle_ns if self.since_ns is None else max(now_ns - MOST_NS, min(idle_ns, self.since_ns))
        while self._pieces and (self._pieces[0][0] < since_ns or self.held_bytes > self._most_bytes):
            self._dropped_ns, piece = self._pieces.popleft()
            self.held_bytes -= len(piece)

    def between(self, since_ns: int, until_ns: int) -> Iterator[bytes]:
        """Yield the pieces that were taken in a span of time, oldest first."""
        return (piece for taken_ns, piece in self._pieces if since_ns <= taken_ns <= until_ns)

    def reach(self, since_ns: int) -> bool:
        """Return True if nothing that was taken from ``since_ns`` on has been dropped."""
        return self._dropped_ns < since_ns


class RecentCapture(Tap):
    """A tap that keeps the newest records in memory and writes no file."""

    def __init__(self, namespace: str, interfaces: Sequence[str], offset_ns: int, most_bytes: int) -> None:
        """Begin to record. Raise MachineError or SwitchError if the kernel does not let us."""
        self.pieces = Pieces(most_bytes)
        nowhere = Path(gettempdir()) / "none.pcap"  # never written: the file next to it has no name
        super().__init__(nowhere, namespace, interfaces, offset_ns, RING_BYTES)

    def _carry(self) -> None:
        now_ns = time.monotonic_ns()
        for piece in self._ring.pieces(RECORD.itemsize):
            self.pieces.add(now_ns, bytes(piece))
        self.pieces.forget(now_ns)

    def packets(self, since_ns: int, until_ns: int) -> Packets:
        """Return the packets recorded from shortly before ``since_ns`` on, and carried by ``until_ns``.

        Both are monotonic. Call ``carry`` before, for the packets to include.
        """
        return parse_pcap(self._pcap(since_ns, until_ns), NAME)

    def segments(self, since_ns: int, until_ns: int) -> Segments:
        """Return TCP's segments with data of that time."""
        return parse_segments(self._pcap(since_ns, until_ns), NAME)

    def _pcap(self, since_ns: int, until_ns: int) -> bytes:
        with self._carrying:
            chosen = b"".join(self.pieces.between(since_ns, until_ns))
        records = np.frombuffer(chosen, RECORD)
        offset_ns = self.offset_ns
        assert offset_ns is not None
        return file_header(SNAP_BYTES, LINKTYPE_LINUX_SLL2) + pcap_records(records, offset_ns)

    def close(self) -> None:
        """End the capture."""
        self.kill()
