"""DCQCN at the receiver, the notification point: when a marked packet is answered with a CNP.

[DCQCN] Figure 6: the first marked packet of a flow at once, then at most one CNP per N microseconds for as
long as marked packets come.
"""

from __future__ import annotations


class NotificationPoint:
    """The notification point of one queue pair."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._last_ns: int | None = None

    def on_marked(self, now_ns: int) -> bool:
        """Take note of a packet with a CE mark; return whether a CNP is due."""
        if self._last_ns is not None and now_ns - self._last_ns < self._interval_ns:
            return False
        self._last_ns = now_ns
        return True
