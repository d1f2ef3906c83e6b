"""A long wire in front of a NIC: what comes in is held for the time that it would have taken longer.

For networks whose bandwidth-delay product counts many packets, on kernels without netem: all that a NIC
receives comes later by the same time, in the order in which it came in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

Frame = tuple[int, memoryview]
"""The plane that a frame came in on, and its bytes."""


class DelayLine:
    """Frames on their way; times in ns on the clock of whoever calls."""

    def __init__(self, delay_ns: int) -> None:
        if delay_ns < 0:
            raise ValueError(f"a delay of {delay_ns} ns: nothing arrives before it is sent")
        self._delay_ns = delay_ns
        self._frames: deque[tuple[int, int, bytes]] = deque()

    def put(self, frames: Iterable[Frame], now_ns: int) -> None:
        """Takes in frames that arrived now. They are copied."""
        due_ns = now_ns + self._delay_ns
        self._frames.extend((due_ns, plane, bytes(frame)) for plane, frame in frames)

    def next_ns(self) -> int | None:
        """When the next frame is through; None where there is none."""
        return self._frames[0][0] if self._frames else None

    def arrived(self, now_ns: int) -> Iterator[Frame]:
        """Takes out the frames that are through by now."""
        frames = self._frames
        while frames and frames[0][0] <= now_ns:
            _, plane, frame = frames.popleft()
            yield plane, memoryview(frame)
