"""One scale for all stamps: by how much CLOCK_REALTIME is ahead of CLOCK_MONOTONIC, and the error of that.

A capture stamps in CLOCK_REALTIME, everything else in CLOCK_MONOTONIC. Linux steers both with the same
rate, so their difference is constant unless the clock is set; it is measured at the start and the
end of a run (and between, if the runner likes), interpolated linearly, and any change between two
measurements counts as error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

# A change of the offset beyond this between two measurements is a step (settimeofday, a leap second, a VM
# that slept).
STEP_NS = 20_000


@dataclass(frozen=True, slots=True)
class OffsetSample:
    """realtime - monotonic was ``offset_ns`` at monotonic ``at_ns``, give or take ``error_ns``."""

    at_ns: int
    offset_ns: int
    error_ns: int

    def to_dict(self) -> dict[str, int]:
        """Return it as it goes into recording.json."""
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
    """Read monotonic, realtime, monotonic many times over and keep the tightest triple (about a
    millisecond).

    The realtime reading fell somewhere between the two monotonic ones, so half their distance bounds the
    error.
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
    """A map from CLOCK_REALTIME stamps to CLOCK_MONOTONIC ones.

    Needs one sample at least; more must be in order of time. Outside the samples the nearest one holds.
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
        """Return a map over these samples, put in order."""
        return cls(tuple(sorted(samples, key=lambda sample: sample.at_ns)))

    def to_monotonic(self, realtime_ns: IntArray) -> IntArray:
        """Return monotonic ns of an array of realtime ns. Exact integers except for the interpolated part."""
        base = self.samples[0].offset_ns
        at = np.array([s.at_ns + s.offset_ns for s in self.samples], dtype=np.int64)
        extra = np.array([s.offset_ns - base for s in self.samples], dtype=np.float64)
        # float64 holds a difference of times to the nanosecond, but not a time since 1970: subtract first
        shift = np.interp((realtime_ns - at[0]).astype(np.float64), (at - at[0]).astype(np.float64), extra)
        monotonic: IntArray = realtime_ns - base - np.rint(shift).astype(np.int64)
        return monotonic

    def error_ns(self, monotonic_ns: int) -> int:
        """Return the bound of the conversion's error near a moment: the measurements' and any change."""
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
