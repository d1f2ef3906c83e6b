"""The reordering window: how much later something must have been sent to prove a packet lost.

The window is

    min(max_reorder, widening * max(min_reorder, fraction * floor, factor * seen, factor * queueing))

On links that are known to be slow (`port_bps`) min_reorder is at least the time of six packets on the link,
and max_reorder at least six times that: packets of one burst, on links with queues of different length, are
that far apart.

`seen` is the furthest that a packet was recently overtaken and yet arrived: it measures on the very axis that
the rule decides on. `queueing` stands for queues that grow before anything was overtaken: what makes a packet
overtake another is the difference between queues, and no queue is longer than the whole queueing delay. It is
the RTT above the least ever: of the smoothed RTT at first, later of `floor`, the least of the last samples,
which leaves out the hiccups of either process. (RACK's own choice, the RTT's deviation, counts those several
times, and on a host in software nearly all deviation is hiccups.) `widening` starts at 1, doubles whenever a
packet that counted as lost turns out to have arrived, and halves again in quiet times.
"""

from __future__ import annotations

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.rdma.rtt import RttEstimator


class ReorderingWindow:
    """How much later something must have been sent, to prove by its acknowledgement that a packet is lost."""

    __slots__ = (
        "_before_ns",
        "_max_ns",
        "_memory_ns",
        "_min_ns",
        "_period_ns",
        "_queueing_factor",
        "_quiet_ns",
        "_recent_ns",
        "_rtt",
        "_rtt_fraction",
        "_seen_factor",
        "_widened_ns",
        "widening",
    )

    _MAX_WIDENING = 16
    _COLD_SAMPLES = 256
    _MEMORY_PACKETS = 512
    """A seen overtaking counts for at least the time of so many packets: on a slow link queues take as long
    to come and go."""
    _PACKET_TIMES = 6
    _SPAN = 6
    """The ceiling over the floor, if that comes from a slow link: 36 packets of 4 KiB fill a queue before it
    trims (16 frames of 9,000 bytes), and no packet is overtaken by more than that."""

    def __init__(self, config: MrcConfig, rtt: RttEstimator) -> None:
        self._rtt = rtt
        self._rtt_fraction = config.reorder_rtt_fraction
        self._queueing_factor = config.reorder_queueing_factor
        self._seen_factor = config.reorder_seen_factor
        slow_ns = self._PACKET_TIMES * config.packet_time_ns()
        self._min_ns = max(config.min_reorder_ns, slow_ns)
        self._max_ns = max(config.max_reorder_ns, self._SPAN * slow_ns)
        self._memory_ns = max(config.reorder_memory_ns, self._MEMORY_PACKETS * config.packet_time_ns())
        self._quiet_ns = config.reorder_quiet_ns
        self.widening = 1
        self._widened_ns = 0
        self._recent_ns = self._before_ns = 0
        self._period_ns = 0

    def ns(self, now_ns: int) -> int:
        """Return the window at this time."""
        rtt = self._rtt
        if self.widening > 1 and now_ns - self._widened_ns > self._quiet_ns:
            self.widening //= 2
            self._widened_ns = now_ns
        floor_ns = rtt.floor_ns
        level_ns = rtt.srtt_ns if rtt.samples < self._COLD_SAMPLES else floor_ns
        # Comparisons rather than max() of four, which is slow once compiled: this runs for each SACK.
        window = self._min_ns
        least = int(floor_ns * self._rtt_fraction)
        if least > window:
            window = least
        least = int((level_ns - rtt.min_ns) * self._queueing_factor)
        if least > window:
            window = least
        least = int(self.seen_ns(now_ns) * self._seen_factor)
        if least > window:
            window = least
        window *= self.widening
        return window if window < self._max_ns else self._max_ns

    def seen_ns(self, now_ns: int) -> int:
        """Return by how much a packet was recently overtaken and yet arrived, on the axis of send times."""
        passed = now_ns - self._period_ns
        if passed > self._memory_ns:
            self._before_ns = self._recent_ns if passed <= 2 * self._memory_ns else 0
            self._recent_ns = 0
            self._period_ns = now_ns
        return max(self._recent_ns, self._before_ns)

    def on_overtaken(self, now_ns: int, extent_ns: int) -> None:
        """Note that a packet arrived after one sent `extent_ns` later was acknowledged."""
        if extent_ns > self.seen_ns(now_ns):
            self._recent_ns = extent_ns

    def on_spurious(self, now_ns: int) -> None:
        """Widen the window: a packet that counted as lost had arrived."""
        self.widening = min(2 * self.widening, self._MAX_WIDENING)
        self._widened_ns = now_ns
