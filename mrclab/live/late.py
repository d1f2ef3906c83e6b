"""Packets that were sent again although nothing was broken: a host was late, or a queue was full. Pure."""

from __future__ import annotations

from typing import Final

GRACE_NS: Final = 8_000_000_000
"""After a repair, packets sent again may still be due to the fault: RoCEv2 waits seconds."""


class LatePackets:
    """Counts them for each transport, from the readings of its counters since its traffic began."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}
        self._counts: dict[str, int] = {}
        self._broken_until_ns = 0

    def begin(self) -> None:
        """Begin to count again: all traffic is new, and so are its counters."""
        self._read.clear()
        self._counts.clear()

    def connect(self, name: str) -> None:
        """Note that a transport has connected again: its counters begin at zero."""
        self._read.pop(name, None)

    def take(self, name: str, resent: int, now_ns: int, *, broken: bool) -> int:
        """Take a reading of the packets sent again; return how many were sent without a fault.

        ``broken`` says whether there is a fault now.
        """
        news = max(0, resent - self._read.get(name, 0))
        self._read[name] = resent
        if broken:
            self._broken_until_ns = now_ns + GRACE_NS
        elif now_ns > self._broken_until_ns:
            self._counts[name] = self._counts.get(name, 0) + news
        return self._counts.get(name, 0)
