"""The packets of the last seconds at a host's NIC, for the times of a fault that somebody just made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from experiments.measure.pcap import LINKTYPE_LINUX_SLL2, Packets, file_header, parse_pcap
from experiments.measure.tcp_capture import parse_segments
from experiments.measure.tcp_trace import Segments
from experiments.run.captures.tap import RECORD, SNAP_BYTES, Tap, pcap_records

RING_BYTES = 8 << 20
NAME = "the live capture"
KEPT_NS = 12_000_000_000
KEPT_BYTES = 96 << 20
"""Of all records of one host. At 10,000 packets a second this is more than 12 s."""


class RecentCapture(Tap):
    """A tap that keeps the newest records in memory and writes no file."""

    def __init__(self, namespace: str, interfaces: Sequence[str], offset_ns: int) -> None:
        """Begin to record. Raise MachineError or SwitchError where the kernel does not let us."""
        self._directory = TemporaryDirectory(prefix="mrclab-live-")
        self._pieces: deque[tuple[int, bytes]] = deque()
        self._held = 0
        try:
            super().__init__(
                Path(self._directory.name) / "none.pcap", namespace, interfaces, offset_ns, RING_BYTES
            )
        except BaseException:
            self._directory.cleanup()
            raise

    def _carry(self) -> None:
        now = time.monotonic_ns()
        for piece in self._ring.pieces(RECORD.itemsize):
            self._pieces.append((now, bytes(piece)))
            self._held += len(piece)
        while self._pieces and (self._pieces[0][0] < now - KEPT_NS or self._held > KEPT_BYTES):
            self._held -= len(self._pieces.popleft()[1])

    def packets(self, since_ns: int, until_ns: int) -> Packets:
        """Return what was recorded from shortly before ``since_ns`` on, and carried by ``until_ns``.

        Both are monotonic. Call ``carry`` before, for what is to be in it.
        """
        return parse_pcap(self._pcap(since_ns, until_ns), NAME)

    def segments(self, since_ns: int, until_ns: int) -> Segments:
        """Return TCP's segments with data of that time."""
        return parse_segments(self._pcap(since_ns, until_ns), NAME)

    def _pcap(self, since_ns: int, until_ns: int) -> bytes:
        with self._carrying:
            chosen = [piece for taken, piece in self._pieces if since_ns <= taken <= until_ns]
        records = np.frombuffer(b"".join(chosen), RECORD)
        offset_ns = self.offset_ns
        assert offset_ns is not None
        return file_header(SNAP_BYTES, LINKTYPE_LINUX_SLL2) + pcap_records(records, offset_ns)

    def close(self) -> None:
        """End the capture."""
        self.kill()
        self._directory.cleanup()
