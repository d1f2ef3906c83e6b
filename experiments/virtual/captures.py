"""Packet captures at the NICs of a simulated fabric, in the format of a live run's captures.

Stamps are virtual time, which begins at 0, in nanoseconds; LINUX_SLL2 marks the packets that went out.
"""

from __future__ import annotations

import struct
from pathlib import Path

from mrclab.experiments.measure.clock import OffsetSample
from mrclab.experiments.measure.pcap import LINKTYPE_LINUX_SLL2, SLL2_OUTGOING, file_header
from mrclab.experiments.measure.recording import CaptureCounts, Recording

SNAPLEN = 192
_ETHERNET = 14
_ETH_P_IPV6, _ARPHRD_ETHER = 0x86DD, 1
_RECORD = struct.Struct("<IIII")
_SLL2 = struct.Struct(">HHIHBB6sxx")
_FLUSH_BYTES = 1 << 22


class PcapRecorder:
    """Writes the frames that a NIC sends and receives to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.packets = 0
        self._file = path.open("wb")
        self._buffer = bytearray(file_header(SNAPLEN, LINKTYPE_LINUX_SLL2))

    def note(self, now_ns: int, port: int, frame: bytes, outgoing: bool) -> None:
        """Record a frame."""
        link = _SLL2.size - _ETHERNET
        kept = min(len(frame), SNAPLEN) + link
        self._buffer += _RECORD.pack(now_ns // 10**9, now_ns % 10**9, kept, len(frame) + link)
        kind = SLL2_OUTGOING if outgoing else 0
        self._buffer += _SLL2.pack(_ETH_P_IPV6, 0, port + 1, _ARPHRD_ETHER, kind, 6, frame[6:12])
        self._buffer += frame[_ETHERNET:SNAPLEN]
        self.packets += 1
        if len(self._buffer) >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._file.write(self._buffer)
        self._buffer.clear()

    def close(self) -> None:
        """Complete the file."""
        self._flush()
        self._file.close()


def recording_of(captures: dict[str, PcapRecorder]) -> Recording:
    """Return the notes of a live run's recorder: every packet is in its file, and there is one clock."""
    counts = {name: CaptureCounts(c.packets, c.packets, 0) for name, c in captures.items()}
    return Recording(counts, (OffsetSample(0, 0, 0),), ())
