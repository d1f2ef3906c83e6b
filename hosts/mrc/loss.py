"""When does a packet count as lost? RTT, the reordering guard, and the timers of the tail.

The rule is RACK's [RFC 8985], adapted to spraying. A packet is lost when another one, SENT at least the guard
later, on whatever path, has been acknowledged:

    sent_ns(newest acknowledged) - sent_ns(packet) > guard

Both ends of that comparison are send times. A receiver or a machine that stalls delays all acknowledgements
alike and therefore declares nothing lost; only evidence that something later overtook the packet does. The
guard is

    min(max_reorder, widening * max(min_reorder, fraction * floor, factor * seen, factor * queueing))

(on links that are known to be slow, `port_bps`, min_reorder is six packets' time on the link at least, and
max_reorder six times that at least: packets of one burst, on links of different fill, are that far apart)

where `seen` is the furthest that a packet was overtaken and yet arrived, of late: it measures on the very
axis the rule decides on. `queueing` stands for queues that grow before anything was overtaken: what makes a
packet overtake another is the difference between queues, and none is longer than all queueing there is. It is
the RTT above the least ever: of the smoothed RTT at first, later of `floor`, the least of the last samples,
which leaves out the hiccups of either process. (RACK's own choice, the RTT's deviation, counts those several
times, and a software host has hardly anything else.) `widening` starts at 1, doubles whenever a packet
counted as lost turns out to have arrived, and halves again in quiet times.

The rule needs something sent later, and nothing is after the last packets of a burst. A probe supplies it:

* when a packet is overtaken but by less than the guard, and nothing sent since could decide: as soon as the
  guard has passed since the packet left;
* else 1.5 * srtt after the last transmission, and more than the guard, while anything is unacknowledged (the
  tail timer): what was sent that long before the probe is lost if the probe is answered first.

Its answer, with the bitmap, settles what was sent before it. Only when probes stay unanswered too does the
ACK timer of the specification count down to the error.
"""

from __future__ import annotations

from hosts.mrc.config import MrcConfig
from hosts.rdma.rtt import RttEstimator


class ReorderGuard:
    """How much later something must have been sent, to prove by its acknowledgement that a packet is lost."""

    __slots__ = (
        "_before_ns",
        "_config",
        "_max_ns",
        "_memory_ns",
        "_min_ns",
        "_period_ns",
        "_recent_ns",
        "_rtt",
        "_widened_ns",
        "widening",
    )

    _MAX_WIDENING = 16
    _QUIET_NS = 1_000_000_000
    _COLD_SAMPLES = 256
    _MEMORY_NS = 250_000_000
    """What was seen counts for this long at least and twice as long at most."""
    _MEMORY_PACKETS = 512
    """And for the time of so many packets on a slow link, where queues take as long to come and go."""
    _PACKET_TIMES = 6
    _SPAN = 6
    """The ceiling over the floor, where that comes from a slow link: 36 packets of 4 KiB are what a queue
    holds before it trims (16 frames of 9,000 bytes), and no packet is overtaken by more than that."""

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._config = config
        self._rtt = rtt
        slow_ns = self._PACKET_TIMES * config.packet_time_ns()
        self._min_ns = max(config.min_reorder_ns, slow_ns)
        self._max_ns = max(config.max_reorder_ns, self._SPAN * slow_ns)
        self._memory_ns = max(self._MEMORY_NS, self._MEMORY_PACKETS * config.packet_time_ns())
        self.widening = 1
        self._widened_ns = 0
        self._recent_ns = self._before_ns = 0
        self._period_ns = 0

    def ns(self, now_ns: int) -> int:
        """Return the guard at this time."""
        config, rtt = self._config, self._rtt
        if self.widening > 1 and now_ns - self._widened_ns > self._QUIET_NS:
            self.widening //= 2
            self._widened_ns = now_ns
        floor_ns = rtt.floor_ns
        level_ns = rtt.srtt_ns if rtt.samples < self._COLD_SAMPLES else floor_ns
        guard = max(
            self._min_ns,
            int(floor_ns * config.reorder_rtt_fraction),
            int((level_ns - rtt.min_ns) * config.reorder_queueing_factor),
            int(self.seen_ns(now_ns) * config.reorder_seen_factor),
        )
        return min(guard * self.widening, self._max_ns)

    def seen_ns(self, now_ns: int) -> int:
        """Return by how much a packet was overtaken of late and yet arrived, on the axis of send times."""
        passed = now_ns - self._period_ns
        if passed > self._memory_ns:
            self._before_ns = self._recent_ns if passed <= 2 * self._memory_ns else 0
            self._recent_ns = 0
            self._period_ns = now_ns
        return max(self._recent_ns, self._before_ns)

    def on_overtaken(self, now_ns: int, extent_ns: int) -> None:
        """A packet arrived although one sent `extent_ns` later was acknowledged before."""
        if extent_ns > self.seen_ns(now_ns):
            self._recent_ns = extent_ns

    def on_spurious(self, now_ns: int) -> None:
        """A packet that counted as lost had arrived."""
        self.widening = min(2 * self.widening, self._MAX_WIDENING)
        self._widened_ns = now_ns


class TailTimer:
    """When to send a probe for the sake of packets nothing was sent after."""

    __slots__ = ("_max_ns", "_rtt", "probes", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._max_ns = max(config.tail_probe_max_ns, 6 * config.packet_time_ns())
        self._rtt = rtt
        self.since_ns = 0
        """Last transmission, of data or of a tail probe."""
        self.probes = 0

    def due_ns(self, guard_ns: int) -> int:
        """Return when the next probe is due; each unanswered one doubles the wait, which has a ceiling.

        That is never below the guard: a probe sent sooner could not prove a loss.
        """
        srtt_ns = self._rtt.srtt_ns
        wait = max(srtt_ns + (srtt_ns >> 1), guard_ns + 1) << min(self.probes, 10)
        return self.since_ns + min(wait, max(self._max_ns, guard_ns + 1))


class AckTimer:
    """The ACK timeout: 1.024 us * 2^n, some tries at that, then doubling [SPEC Table 7-1]."""

    __slots__ = ("_config", "_rtt", "retries", "since_ns")

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._config = config
        self._rtt = rtt
        self.since_ns = 0
        """Last progress, or the moment something became outstanding."""
        self.retries = 0

    def timeout_ns(self) -> int:
        """Return the present timeout; never below four smoothed RTTs."""
        base = max(1024 << self._config.ack_timeout_exponent, 4 * self._rtt.srtt_ns)
        return base << max(0, min(self.retries - self._config.linear_retries + 1, 24))

    def due_ns(self) -> int:
        """Return when the timer runs out."""
        return self.since_ns + self.timeout_ns()

    @property
    def exhausted(self) -> bool:
        """All retries are used up."""
        if self._config.exponential_retries >= 25:
            return False
        return self.retries > self._config.linear_retries + self._config.exponential_retries
