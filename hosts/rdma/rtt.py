"""The round-trip time (RTT) of a queue pair: its smoothed value, deviation, minimum and recent minimum."""

from __future__ import annotations


class RttEstimator:
    """Smoothed RTT and mean deviation [RFC 6298], in integer ns."""

    __slots__ = ("_initial_ns", "_last_floor_ns", "_next_floor_ns", "latest_ns", "min_ns", "samples",
                 "srtt_ns", "var_ns")  # fmt: skip

    _FLOOR_SAMPLES = 8

    def __init__(self, initial_ns: int) -> None:
        self._initial_ns = initial_ns
        self.restart()

    def restart(self) -> None:
        """Drop all samples and start again."""
        initial_ns = self._initial_ns
        self.srtt_ns = initial_ns
        self.var_ns = initial_ns // 2
        self.min_ns = initial_ns
        """The smallest sample since the start, ns."""
        self.latest_ns = initial_ns
        self.samples = 0
        self._last_floor_ns = self._next_floor_ns = initial_ns

    @property
    def floor_ns(self) -> int:
        """The smallest recent sample, ns. Between 8 and 16 samples count as recent."""
        return min(self._last_floor_ns, self._next_floor_ns)

    @property
    def probe_timeout_ns(self) -> int:
        """The time that an answer may take, ns: smoothed RTT plus four times its deviation [RFC 6298]."""
        return self.srtt_ns + 4 * self.var_ns

    def sample(self, rtt_ns: int) -> None:
        """Add a measured RTT. It must be clear which transmission was answered."""
        self.latest_ns = rtt_ns
        if self.samples % self._FLOOR_SAMPLES == 0:
            self._last_floor_ns = self._next_floor_ns if self.samples else rtt_ns
            self._next_floor_ns = rtt_ns
        elif rtt_ns < self._next_floor_ns:
            self._next_floor_ns = rtt_ns
        if self.samples == 0:
            self.srtt_ns, self.var_ns, self.min_ns = rtt_ns, rtt_ns // 2, rtt_ns
        else:
            self.var_ns += (abs(rtt_ns - self.srtt_ns) - self.var_ns) >> 2
            self.srtt_ns += (rtt_ns - self.srtt_ns) >> 3
            if rtt_ns < self.min_ns:
                self.min_ns = rtt_ns
        self.samples += 1
