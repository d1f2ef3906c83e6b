"""DCQCN, RoCEv2's congestion control: when a receiver sends CNPs, and how fast a sender may send.

The receiver is the notification point, [DCQCN] Figure 6. It answers the first marked packet of a flow with a
CNP at once. While more marked packets arrive, it sends at most one CNP per N microseconds.

The sender is the reaction point, [DCQCN] §3.1, Figure 7. R_C is the current rate and R_T the target rate:

    on a CNP         R_T = R_C;  R_C = R_C (1 - alpha / 2);  alpha = (1 - g) alpha + g
    K without CNP    alpha = (1 - g) alpha
    step of the timer or of the byte counter (i_T and i_B: number of these steps since the last CNP):
        fast recovery        max(i_T, i_B) < F     R_C = (R_T + R_C) / 2
        hyper increase       min(i_T, i_B) > F     R_T = R_T + R_HAI, then as above
        additive increase    else                  R_T = R_T + R_AI, then as above

The sender needs no timer. When the rate is read, the sender does all steps that are due, in order. The
limiter is a token bucket that fills at the rate R_C. At line rate the limiter is off, and only alpha changes.
"""

from __future__ import annotations

from mrclab.hosts.roce.config import DcqcnConfig


class NotificationPoint:
    """The receiver's part of DCQCN for one queue pair: it decides when a marked packet causes a CNP."""

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._last_ns: int | None = None

    def on_marked(self, now_ns: int) -> bool:
        """Record a packet with a CE mark; return whether a CNP must be sent."""
        if self._last_ns is not None and now_ns - self._last_ns < self._interval_ns:
            return False
        self._last_ns = now_ns
        return True


def power(base: float, exponent: int) -> float:
    """Return a power, computed by multiplications. The result of pow() would depend on the C library."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


class ReactionPoint:
    """The rate limiter of one queue pair. Times are in ns, rates in bits per second."""

    def __init__(self, config: DcqcnConfig) -> None:
        self._config = config
        line = float(config.line_rate_bps)
        self.rate_bps = line
        """The current rate R_C."""
        self.target_bps = line
        """The target rate R_T."""
        self.alpha = 1.0
        self.cnps = 0
        self._limiting = False
        self._alpha_from_ns = 0
        self._rate_from_ns = 0
        self._bytes = 0
        self._timer_steps = 0
        self._byte_steps = 0
        self._credit_bytes = 0.0
        """Bytes that may be sent now. If a sent packet is larger, the number becomes negative."""
        self._credit_ns = 0

    @property
    def limiting(self) -> bool:
        """True if the rate was below line rate at the last `advance`."""
        return self._limiting

    def on_cnp(self, now_ns: int) -> None:
        """Lower the rate, because a CNP arrived."""
        self.advance(now_ns)
        config = self._config
        self.cnps += 1
        if not self._limiting:
            self._credit_bytes, self._credit_ns = 0.0, now_ns
        self.target_bps = self.rate_bps
        self.rate_bps = max(self.rate_bps * (1 - self.alpha / 2), float(config.r_min_bps))
        self.alpha = (1 - config.g) * self.alpha + config.g
        self._alpha_from_ns = self._rate_from_ns = now_ns
        self._timer_steps = self._byte_steps = self._bytes = 0
        self._limiting = True

    def on_sent(self, now_ns: int, size_bytes: int) -> None:
        """Count the sent bytes, and do the steps of the byte counter that are due."""
        self.advance(now_ns)
        if not self._limiting:
            return
        self._credit_bytes -= size_bytes
        self._bytes += size_bytes
        while self._limiting and self._bytes >= self._config.byte_counter_bytes:
            self._bytes -= self._config.byte_counter_bytes
            self._byte_steps += 1
            self._increase()

    def advance(self, now_ns: int) -> float:
        """Do all steps of the timers that are due by now. Return the rate, bit/s."""
        config = self._config
        if self.cnps:
            periods = (now_ns - self._alpha_from_ns) // config.alpha_timer_ns
            if periods > 0:
                self.alpha *= power(1 - config.g, periods)
                self._alpha_from_ns += periods * config.alpha_timer_ns
        while self._limiting and now_ns - self._rate_from_ns >= config.rate_timer_ns:
            self._rate_from_ns += config.rate_timer_ns
            self._earn(self._rate_from_ns)
            self._timer_steps += 1
            self._increase()
        if self._limiting:
            self._earn(now_ns)
        return self.rate_bps

    def _earn(self, now_ns: int) -> None:
        if now_ns > self._credit_ns:
            earned = self.rate_bps * (now_ns - self._credit_ns) / 8e9
            self._credit_bytes = min(self._credit_bytes + earned, float(self._config.burst_bytes))
            self._credit_ns = now_ns

    def may_send(self, now_ns: int) -> bool:
        """Return whether the rate allows a packet now."""
        self.advance(now_ns)
        return not self._limiting or self._credit_bytes >= 0

    def next_send_ns(self, now_ns: int) -> int:
        """Return the time at which to call `may_send` again, at most four timer steps from now."""
        if self.may_send(now_ns):
            return now_ns
        wait_ns = round(-self._credit_bytes * 8e9 / self.rate_bps) + 1
        return now_ns + min(wait_ns, 4 * self._config.rate_timer_ns)

    def _increase(self) -> None:
        config = self._config
        if min(self._timer_steps, self._byte_steps) > config.fast_recovery_steps:
            self.target_bps += config.r_hai_bps
        elif max(self._timer_steps, self._byte_steps) >= config.fast_recovery_steps:
            self.target_bps += config.r_ai_bps
        self.target_bps = min(self.target_bps, float(config.line_rate_bps))
        self.rate_bps = (self.target_bps + self.rate_bps) / 2
        if self.target_bps >= config.line_rate_bps and self.rate_bps > config.line_rate_bps * 0.999:
            self.rate_bps = self.target_bps
            self._limiting = False
