"""A recorder's notes next to the packets: drop counts, clock offsets, and the machine's load by trial."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mrclab.experiments.measure.clock import ClockMap, OffsetSample
from mrclab.experiments.measure.load import Load
from mrclab.linux.errors import DAMAGE, InputError

_CHUNK = 1 << 20


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file. Raise OSError."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            found = zlib.crc32(piece, found)
    return found


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """The counts of one capture. A packet ``dropped`` was seen by the kernel and is not in the file.

    ``crc32`` is of the file as it was written; None: not known.
    """

    captured: int
    received: int
    dropped: int
    crc32: int | None = None


@dataclass(frozen=True)
class Recording:
    """The counts of every capture by its name, measured clock offsets, and loads (one a trial)."""

    counts: Mapping[str, CaptureCounts]
    offsets: tuple[OffsetSample, ...]
    loads: tuple[Load, ...]

    @property
    def clock(self) -> ClockMap:
        """The map from the captures' clock to CLOCK_MONOTONIC."""
        return ClockMap.of(self.offsets)

    @property
    def drops(self) -> dict[str, int]:
        """Packets that each capture lost."""
        return {name: counts.dropped for name, counts in self.counts.items()}

    def changed(self, files: Mapping[str, Path]) -> list[str]:
        """Return the captures that are not as they were written, of those whose files are there."""
        sums = {name: counts.crc32 for name, counts in self.counts.items() if counts.crc32 is not None}
        return [n for n, path in files.items() if n in sums and path.exists() and crc32_of(path) != sums[n]]

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of recording.json."""
        return {
            "captures": {name: asdict(c) for name, c in self.counts.items()},
            "clock_offsets": [sample.to_dict() for sample in self.offsets],
            "loads": [load.to_dict() for load in self.loads],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recording:
        """Return the recording that ``to_dict`` described."""
        return cls(
            counts={name: CaptureCounts(**entry) for name, entry in data["captures"].items()},
            offsets=tuple(OffsetSample.from_dict(entry) for entry in data["clock_offsets"]),
            loads=tuple(Load.from_dict(entry) for entry in data["loads"]),
        )


def load_recording(path: Path) -> Recording:
    """Read recording.json. Raise InputError."""
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Recording.from_dict(data)
    except (OSError, *DAMAGE) as error:
        raise InputError(f"not a recording: {error}", where=str(path)) from None
