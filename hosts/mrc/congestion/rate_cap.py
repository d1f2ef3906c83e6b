"""A cap on the rate towards a destination, in front of any congestion control."""

from __future__ import annotations

from mrclab.hosts.mrc.congestion.control import NO_END_NS, CongestionControl


class RateCap(CongestionControl):
    """A token bucket towards a destination, before a `window`: never faster than `rate_bps` of payload.

    The bucket holds `burst_bytes` at most and may go below zero by the last packet of a burst. Once used up
    it lets nothing through until `quantum_bytes` are in it, but for repairs: lost data may go out again at
    once, a burst of it at most, and later data waits until the bucket has earned that, too.

    The bucket counts payload, as full packets of `mtu_bytes` have it: of each packet's size it leaves out the
    part that the window's `overhead_bytes` have in a full one.
    """

    shared = True
    paced = True

    def __init__(
        self,
        window: CongestionControl,
        rate_bps: int,
        burst_bytes: int,
        quantum_bytes: int = 1,
        mtu_bytes: int = 4096,
    ) -> None:
        super().__init__(window.cwnd_bytes)
        self._window = window
        self.overhead_bytes = window.overhead_bytes
        self.byte_ns = window.byte_ns
        self.reads_rcvd_bytes = window.reads_rcvd_bytes
        self._mtu_bytes = mtu_bytes
        self._full_bytes = mtu_bytes + window.overhead_bytes
        """The size of a full packet, as the window counts it."""
        self._quantum = (quantum_bytes - 1) * 8_000_000_000
        """What must be exceeded before anything goes out of a bucket that was used up."""
        self._used_up = False
        self._advance_bytes = 0
        """What may be sent ahead of its tokens, as the window counts."""
        self._most_advance_bytes = burst_bytes * self._full_bytes // mtu_bytes
        self.rate_bps = rate_bps
        self.burst_bytes = burst_bytes
        self._tokens = burst_bytes * 8_000_000_000
        """In bit-nanoseconds per second, so that no fraction of a byte is ever lost."""
        self._filled_ns: int | None = None

    def set_rate_cap(self, rate_bps: int) -> None:
        """Fill the bucket at this rate from the next refill on."""
        self.rate_bps = rate_bps

    def _fill(self, now_ns: int) -> None:
        if self._filled_ns is not None and now_ns > self._filled_ns:
            earned = (now_ns - self._filled_ns) * self.rate_bps
            self._tokens = min(self.burst_bytes * 8_000_000_000, self._tokens + earned)
        self._filled_ns = now_ns if self._filled_ns is None else max(now_ns, self._filled_ns)

    def budget_bytes(self, now_ns: int) -> int:
        """Return the lesser of what window and bucket allow; a part of a byte counts as one."""
        earned = 0
        if not self._waits(now_ns):
            earned = -(-self._tokens * self._full_bytes // (8_000_000_000 * self._mtu_bytes))
        return min(self._window.budget_bytes(now_ns), max(earned, self._advance_bytes))

    def _waits(self, now_ns: int) -> bool:
        self._fill(now_ns)
        if self._used_up and self._tokens > self._quantum:
            self._used_up = False
        return self._used_up

    def _cost(self, size: int) -> int:
        """Return what packets of this size, as the window counts, take out of the bucket."""
        return size * self._mtu_bytes * 8_000_000_000 // self._full_bytes

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when the bucket holds a quantum again."""
        if not self._waits(now_ns) or self._advance_bytes > 0:
            return None
        return now_ns + (self._quantum - self._tokens) // self.rate_bps + 1

    def pause_ns(self, size: int) -> int:
        """Return how long the bucket needs, or no end where the window closes."""
        if self.inflight_bytes + size >= self.cwnd_bytes:
            return NO_END_NS
        return (self._quantum - self._tokens + self._cost(size)) // self.rate_bps + 1

    def on_sent(self, now_ns: int, size: int) -> None:
        """Take the size out of the bucket."""
        self._window.on_sent(now_ns, size)
        self._follow()
        self._tokens -= self._cost(size)
        self._advance_bytes = max(0, self._advance_bytes - size)
        if self._tokens <= 0:
            self._used_up = True

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Let the repair go out ahead of its tokens."""
        self._window.on_loss(now_ns, lost_bytes)
        self._follow()
        self._advance_bytes = min(self._most_advance_bytes, self._advance_bytes + lost_bytes)

    # All else is the window's.

    def _follow(self) -> None:
        self.cwnd_bytes = self._window.cwnd_bytes
        self.inflight_bytes = self._window.inflight_bytes

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Have the window take it in."""
        self._window.on_ack(now_ns, acked_bytes, rtt_ns, ecn)
        self._follow()

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Have the window take it in."""
        self._window.on_trim(now_ns, lost_bytes, last_hop)
        self._follow()

    def on_arrived(self, arrived_bytes: int) -> None:
        """Have the window take it in."""
        self._window.on_arrived(arrived_bytes)

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Have the window take it in."""
        self._window.on_nack_rtt(rtt_ns)
        self._follow()

    def on_withdrawn(self, size: int) -> None:
        """Have the window take it in."""
        self._window.on_withdrawn(size)
        self._follow()

    def on_receiver(self, now_ns: int, penalty: int, restore: bool) -> None:
        """Have the window take it in."""
        super().on_receiver(now_ns, penalty, restore)
        self._window.on_receiver(now_ns, penalty, restore)

    def calibrate(self, base_rtt_ns: int) -> None:
        """Have the window take it in."""
        self._window.calibrate(base_rtt_ns)
        self._follow()
