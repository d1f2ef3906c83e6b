"""The data that a recorder stores with the captures: drop counts, loads of the trials, clock offsets.

Captures use CLOCK_REALTIME, all other data use CLOCK_MONOTONIC. On Linux both clocks run at the same rate, so
their difference is constant unless the clock is set. The difference is measured at the start and the end of a
run, and between trials. Between two measurements, the difference is interpolated, and its change counts as an
error.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mrclab.experiments.measure.load import Load
from mrclab.linux.errors import DAMAGE, InputError

IntArray = npt.NDArray[np.int64]

# A larger change of the offset between two measurements is a step: somebody set the clock, for example.
STEP_NS = 20_000


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """A measurement: realtime minus monotonic was ``offset_ns`` +- ``error_ns`` at monotonic ``at_ns``."""

    at_ns: int
    offset_ns: int
    error_ns: int

    def to_dict(self) -> dict[str, int]:
        """Return the sample as in recording.json."""
        return {"at_ns": self.at_ns, "offset_ns": self.offset_ns, "error_ns": self.error_ns}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OffsetSample:
        """Return the sample that ``to_dict`` described."""
        return cls(int(data["at_ns"]), int(data["offset_ns"]), int(data["error_ns"]))


def measure_offset(
    reads: int = 2000,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    realtime_ns: Callable[[], int] = time.time_ns,
) -> OffsetSample:
    """Measure the offset between realtime and monotonic. This takes about a millisecond.

    The clocks are read many times in the order monotonic, realtime, monotonic. The fastest reading counts.
    The largest error is half of the distance between the two monotonic times of this reading.
    """
    best: OffsetSample | None = None
    for _ in range(max(reads, 1)):
        before, real, after = monotonic_ns(), realtime_ns(), monotonic_ns()
        error = (after - before + 1) // 2
        if best is None or error < best.error_ns:
            middle = before + (after - before) // 2
            best = OffsetSample(middle, real - middle, error)
    assert best is not None
    return best


@dataclass(frozen=True, slots=True)
class ClockMap:
    """A map from times of CLOCK_REALTIME to times of CLOCK_MONOTONIC.

    It needs at least one sample. Samples must be in order of time. Before the first and after the last
    sample, the nearest sample is used.
    """

    samples: tuple[OffsetSample, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a clock map needs at least one measurement of the offset")
        times = [sample.at_ns for sample in self.samples]
        if times != sorted(times):
            raise ValueError("measurements of the clock offset must be in order of time")

    @classmethod
    def of(cls, samples: Sequence[OffsetSample]) -> ClockMap:
        """Return a map with these samples, sorted by time."""
        return cls(tuple(sorted(samples, key=lambda sample: sample.at_ns)))

    def to_monotonic(self, realtime_ns: IntArray) -> IntArray:
        """Return the monotonic ns of an array of realtime ns. Only the interpolated offset is rounded."""
        base = self.samples[0].offset_ns
        at = np.array([s.at_ns + s.offset_ns for s in self.samples], dtype=np.int64)
        extra = np.array([s.offset_ns - base for s in self.samples], dtype=np.float64)
        # Subtract first: float64 is exact to a nanosecond for a difference of times, but not for a time since
        # 1970.
        shift = np.interp((realtime_ns - at[0]).astype(np.float64), (at - at[0]).astype(np.float64), extra)
        monotonic: IntArray = realtime_ns - base - np.rint(shift).astype(np.int64)
        return monotonic

    def error_ns(self, monotonic_ns: int) -> int:
        """Return the largest error of the times near ``monotonic_ns`` that `to_monotonic` returns.

        The error includes any change of the offset between the two clocks.
        """
        after = next(
            (i for i, s in enumerate(self.samples) if s.at_ns >= monotonic_ns), len(self.samples) - 1
        )
        before = max(after - 1, 0)
        a, b = self.samples[before], self.samples[after]
        return max(a.error_ns, b.error_ns) + abs(a.offset_ns - b.offset_ns)

    @property
    def max_change_ns(self) -> int:
        """The largest change of the offset between two measurements."""
        pairs = zip(self.samples, self.samples[1:], strict=False)
        return max((abs(b.offset_ns - a.offset_ns) for a, b in pairs), default=0)


_CHUNK = 1 << 20


def crc32_of(path: Path) -> int:
    """Return the CRC-32 of a file. Raise OSError if the file cannot be read."""
    found = 0
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            found = zlib.crc32(piece, found)
    return found


@dataclass(frozen=True, slots=True)
class CaptureCounts:
    """The counts of a capture. A ``dropped`` packet was seen by the kernel, but is not in the file.

    ``crc32`` is the CRC-32 of the written file; None if it is unknown.
    """

    captured: int
    received: int
    dropped: int
    crc32: int | None = None


@dataclass(frozen=True)
class Recording:
    """The counts of every capture by name, the measured clock offsets, and the loads (one for each trial)."""

    counts: Mapping[str, CaptureCounts]
    offsets: tuple[OffsetSample, ...]
    loads: tuple[Load, ...]

    @property
    def clock(self) -> ClockMap:
        """The map from the captures' clock to CLOCK_MONOTONIC."""
        return ClockMap.of(self.offsets)

    @property
    def drops(self) -> dict[str, int]:
        """The number of packets that each capture lost."""
        return {name: counts.dropped for name, counts in self.counts.items()}

    def changed(self, files: Mapping[str, Path]) -> list[str]:
        """Return the captures whose files have changed since they were written. Missing files are skipped."""
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
    """Read recording.json. Raise InputError if it is missing or malformed."""
    try:
        data: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Recording.from_dict(data)
    except (OSError, *DAMAGE) as error:
        raise InputError(f"not a recording: {error}", where=str(path)) from None
