"""A cap on the rate towards a destination."""

from __future__ import annotations

from hosts.mrc.congestion.control import NO_END_NS, CongestionControl


class RateCap(CongestionControl):
    """A token bucket towards a destination, inside a fixed window: never faster than `rate_bps` of payload.

    The bucket holds `burst_bytes` at most and may go below zero by the last packet of a burst. Once used up
    it lets nothing through until `quantum_bytes` are in it, but for repairs: what was lost may go out again
    at once, a burst of it at most, and what follows waits until the bucket has earned that, too.
    """

    shared = True
    paced = True

    def __init__(self, cwnd_bytes: int, rate_bps: int, burst_bytes: int, quantum_bytes: int = 1) -> None:
        super().__init__(cwnd_bytes)
        self._quantum = (quantum_bytes - 1) * 8_000_000_000
        """What must be exceeded before anything goes out of a bucket that was used up."""
        self._used_up = False
        self._advance_bytes = 0
        """What may be sent ahead of its tokens."""
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
        earned = 0 if self._waits(now_ns) else -(-self._tokens // 8_000_000_000)
        return min(self.cwnd_bytes - self.inflight_bytes, max(earned, self._advance_bytes))

    def _waits(self, now_ns: int) -> bool:
        self._fill(now_ns)
        if self._used_up and self._tokens > self._quantum:
            self._used_up = False
        return self._used_up

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when the bucket holds a quantum again."""
        if not self._waits(now_ns) or self._advance_bytes > 0:
            return None
        return now_ns + (self._quantum - self._tokens) // self.rate_bps + 1

    def pause_ns(self, size: int) -> int:
        """Return how long the bucket needs, or no end where the window closes."""
        if self.inflight_bytes + size >= self.cwnd_bytes:
            return NO_END_NS
        return (self._quantum - self._tokens + size * 8_000_000_000) // self.rate_bps + 1

    def on_sent(self, now_ns: int, size: int) -> None:
        """Take the size out of the bucket."""
        super().on_sent(now_ns, size)
        self._tokens -= size * 8_000_000_000
        self._advance_bytes = max(0, self._advance_bytes - size)
        if self._tokens <= 0:
            self._used_up = True

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Let the repair go out ahead of its tokens."""
        super().on_loss(now_ns, lost_bytes)
        self._advance_bytes = min(self.burst_bytes, self._advance_bytes + lost_bytes)
