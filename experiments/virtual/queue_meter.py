"""The queues of all ports of a simulated fabric over time, for a heat map."""

from __future__ import annotations

from typing import Any

from mrclab.simulator.clock import PS_PER_NS
from mrclab.simulator.network import Network

MOST_ROWS = 400
"""Readings to keep; if there are more, every second one goes and the period doubles."""
MOST_PORTS = 64
"""Ports to report: those with the longest queues."""


class QueueMeter:
    """Reads how long a frame would wait at each port, once in a period."""

    def __init__(self, network: Network, begin_ns: int, period_ns: int, *, wanted: bool) -> None:
        """Read from ``begin_ns`` on, if it is ``wanted``."""
        self._ports = list(network.links.values()) if wanted else []
        self._period_ns = period_ns
        self._begin_ns = begin_ns
        self._rows: list[list[int]] = []
        self.next_ns: int | None = begin_ns if wanted else None
        """When the next reading is due."""

    def act(self, now_ns: int) -> None:
        """Take a reading if one is due."""
        if self.next_ns is None or now_ns < self.next_ns:
            return
        now_ps = now_ns * PS_PER_NS
        self._rows.append([max(0, port.load_ps() - now_ps) // PS_PER_NS for port in self._ports])
        if len(self._rows) > MOST_ROWS:
            self._rows = self._rows[::2]
            self._period_ns *= 2
        self.next_ns = self._begin_ns + len(self._rows) * self._period_ns

    def found(self, measure_ns: int) -> dict[str, Any]:
        """Return the readings in JSON types: ``start_us`` from ``measure_ns`` on, ``bin_us``, ``wait_ns``.

        The last is a list for each port by its name. Ports whose queues were always empty are left out.
        """
        columns = zip(*self._rows, strict=True) if self._rows else ()
        waits = {port.name: list(column) for port, column in zip(self._ports, columns, strict=False)}
        longest = sorted(waits, key=lambda name: (-max(waits[name]), name))[:MOST_PORTS]
        return {
            "start_us": (self._begin_ns - measure_ns) / 1e3,
            "bin_us": self._period_ns / 1e3,
            "wait_ns": {name: waits[name] for name in sorted(longest) if max(waits[name])},
        }
