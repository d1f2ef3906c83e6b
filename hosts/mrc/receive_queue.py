"""The receives that an application has posted: each WRITE with immediate consumes one [API, SPEC §6]."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class ReceiveQueue:
    """The receives of one queue pair, oldest first."""

    __slots__ = ("_posted", "_refill", "_taken", "required")

    def __init__(self, *, required: bool, refill: Callable[[], None] | None = None) -> None:
        """Start without receives. When too few are left, `refill` may post those of which it knows."""
        self.required = required
        """A WRITE with immediate needs one. If not, there is room for each that was agreed on."""
        self._posted: deque[int] = deque()
        self._refill = refill
        self._taken = 0

    def post(self, wr_id: int) -> None:
        """Add a receive."""
        self._posted.append(wr_id)

    def lacking(self, rqmsn: int) -> bool:
        """Return whether too few are left for the immediate of this RQMSN and all due before it."""
        if not self.required:
            return False
        due_before = rqmsn - self._taken & 0xFFFF
        if len(self._posted) <= due_before and self._refill is not None:
            self._refill()
        return len(self._posted) <= due_before

    def take(self) -> int | None:
        """Consume the oldest receive; return its number, None if no receive is needed."""
        if not self.required:
            return None
        self._taken += 1
        return self._posted.popleft()

    def clear(self) -> list[int]:
        """Remove all; return their numbers."""
        left = list(self._posted)
        self._posted.clear()
        return left
