"""The bytes that links carry over time, from the switches' own counters during a measurement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mrclab.topologies import Fabric

PERIOD_NS = 100_000_000


class LinkMeter:
    """Reads counters every 100 ms; ``read`` has the bytes sent by every interface so far, by its name."""

    def __init__(
        self,
        fabric: Fabric,
        links: Sequence[str],
        read: Callable[[], Mapping[str, int]],
        begin_ns: int,
        period_ns: int = PERIOD_NS,
    ) -> None:
        ends = {name: fabric.link(*name.split(":")) for name in links}
        self._ports = {name: (link.a.ifname, link.b.ifname) for name, link in ends.items()}
        self._read = read
        self._begin_ns = begin_ns
        self._period_ns = period_ns
        self._times: list[int] = []
        self._bytes: dict[str, list[int]] = {name: [] for name in links}
        self.next_ns: int | None = begin_ns if links else None
        """When the next reading is due."""

    def act(self, clock: Callable[[], int]) -> None:
        """Take a reading if one is due."""
        if self.next_ns is None or clock() < self.next_ns:
            return
        before = clock()
        counters = self._read()
        after = clock()
        self._times.append((before + after) // 2)
        for name, ports in self._ports.items():
            self._bytes[name].append(sum(counters.get(port, 0) for port in ports))
        self.next_ns += self._period_ns * max(1, -(-(after - self.next_ns) // self._period_ns))

    def series(self, measure_ns: int) -> dict[str, Any]:
        """Return the bytes that each link carried in each bin from its first reading on, both ways together.

        ``start_us`` is relative to ``measure_ns``. Between two readings bytes are assumed to come evenly.
        """
        last_ns = self._times[-1] if self._times else self._begin_ns
        import numpy as np  # scenarios are checked without it

        edges = np.arange(self._begin_ns, last_ns + 1, self._period_ns)
        carried = {
            name: np.diff(np.interp(edges, self._times, counts)).round().astype(int).tolist()
            for name, counts in self._bytes.items()
            if counts
        }
        start_us = (self._begin_ns - measure_ns) / 1e3
        return {"start_us": start_us, "bin_us": self._period_ns / 1e3, "bytes": carried}
