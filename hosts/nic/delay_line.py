"""A long wire in front of a NIC: it delays all frames that the NIC receives by the same time, in order.

This emulates networks with a bandwidth-delay product of many packets on kernels without netem.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

Frame = tuple[int, memoryview]
"""The plane on which a frame arrived, and its bytes."""


class DelayLine:
    """The delayed frames. Times are in ns on the caller's clock."""

    def __init__(self, delay_ns: int) -> None:
        if delay_ns < 0:
            raise ValueError(f"a delay must not be negative: {delay_ns} ns")
        self._delay_ns = delay_ns
        self._frames: deque[tuple[int, int, bytes]] = deque()

    def put(self, frames: Iterable[Frame], now_ns: int) -> None:
        """Add frames that arrived now. They are copied."""
        due_ns = now_ns + self._delay_ns
        self._frames.extend((due_ns, plane, bytes(frame)) for plane, frame in frames)

    def next_ns(self) -> int | None:
        """Return when the next frame is due; None if there is none."""
        return self._frames[0][0] if self._frames else None

    def arrived(self, now_ns: int) -> Iterator[Frame]:
        """Remove and yield the frames that are due."""
        frames = self._frames
        while frames and frames[0][0] <= now_ns:
            _, plane, frame = frames.popleft()
            yield plane, memoryview(frame)
