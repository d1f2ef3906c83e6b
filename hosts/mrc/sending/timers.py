"""The timers of the tail: when to probe, and when to give up.

A packet is lost when something sent later is acknowledged, and nothing is sent after the last packets of a
burst. A probe takes that part 1.5 * srtt after the last transmission, and more than the reordering window.
Only when probes stay unanswered does the ACK timer of the specification count down to the error.
"""

from __future__ import annotations

from mrclab.hosts.mrc.config import ENDLESS_RETRIES, MrcConfig
from mrclab.hosts.rdma.rtt import RttEstimator


class TailTimer:
    """When to send a probe because nothing was sent after the last packets."""

    __slots__ = ("_max_ns", "_rtt", "probes", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._max_ns = max(config.tail_probe_max_ns, 6 * config.packet_time_ns())
        self._rtt = rtt
        self.since_ns = 0
        """Last transmission, of data or of a tail probe."""
        self.probes = 0

    def due_ns(self, window_ns: int) -> int:
        """Return when the next probe is due; each unanswered one doubles the wait, which has a ceiling.

        That is never below the reordering window: a probe sent sooner could not prove a loss.
        """
        srtt_ns = self._rtt.srtt_ns
        wait = max(srtt_ns + (srtt_ns >> 1), window_ns + 1) << min(self.probes, 10)
        return self.since_ns + min(wait, max(self._max_ns, window_ns + 1))


class AckTimer:
    """The ACK timeout: 1.024 us * 2^n, some tries at that, then doubling [SPEC Table 7-1]."""

    __slots__ = ("_at_base", "_base_ns", "_exponential", "_linear", "_rtt", "_step", "retries", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        exponent, self._linear, self._exponential = config.ack_times()
        self._base_ns = 1024 << exponent
        self._at_base = config.reading.retransmission_timer_at_base
        self._rtt = rtt
        self.since_ns = 0
        """Last progress, or the moment something became outstanding."""
        self.retries = 0
        self._step = 0
        """Retries by the last retransmission that began at the base interval again."""

    def choose(self, exponent: int, linear: int, exponential: int) -> None:
        """Set the timeout, 1.024 us * 2^exponent, and how often it runs out before the queue pair fails."""
        self._base_ns, self._linear, self._exponential = 1024 << exponent, linear, exponential

    def timeout_ns(self) -> int:
        """Return the present timeout; never below four smoothed RTTs."""
        wait = self._base_ns << max(0, min(self.retries - self._step - self._linear + 1, 24))
        return max(wait, 4 * self._rtt.srtt_ns)

    def restart(self, now_ns: int) -> None:
        """Begin at the base interval with all retries left."""
        self.since_ns = now_ns
        self.retries = self._step = 0

    def on_retransmission(self, now_ns: int) -> None:
        """Begin at the base interval, if the option is set; the retries stay counted."""
        if self._at_base and self.retries > self._step:
            self.since_ns = now_ns
            self._step = self.retries

    def due_ns(self) -> int:
        """Return when the timer runs out."""
        return self.since_ns + self.timeout_ns()

    @property
    def exhausted(self) -> bool:
        """All retries are used up."""
        if self._exponential >= ENDLESS_RETRIES:
            return False
        return self.retries > self._linear + self._exponential
