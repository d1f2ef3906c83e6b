"""NSCC, the window-based congestion control of MRC ("uet-1.0-nscc" [API], SPEC §8, UEC §3.6).

Every acknowledgement falls into one of four quadrants [SPEC Table 8-1]; delay is the RTT less the base RTT:

                  delay < target           delay >= target
    no ECN        proportional increase    fair increase
    ECN           nothing                  multiplicative decrease

ECN without delay means that some path is congested and others are not: spraying mends that, so the window
stays. Increases are gathered and applied ("fulfilled") every `adjust_bytes_threshold` or
`adjust_period_ns`; a decrease comes at most once per base RTT. After a loss, or when delay is out of all
proportion, quick adapt sets the window to what was really delivered during the last RTT.

The arithmetic is plain, with every constant a knob, so that a step can be checked with pencil and paper.
Production values of MRC are unknown; defaults are UEC's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_REFERENCE_BDP_BYTES: Final = 150_000
"""100 Gbit/s times 12 us: the network UEC's constants were chosen for."""
_REFERENCE_RTT_NS: Final = 12_000


@dataclass(frozen=True, slots=True)
class NsccConfig:
    """The knobs of [API]. 0 means derived, as each says; `resolve` puts the derived values in."""

    base_rtt_ns: int = 50_000
    """RTT of an idle network, ns. Of the emulated lab, not of a data centre's 5-10 us."""
    link_bps: int = 1_000_000_000
    """What the NIC can send towards one destination, all planes together, bit/s."""
    target_delay_ns: int = 0
    """Queueing delay aimed at; 0: 0.75 base RTT where switches trim, else one base RTT [UEC]."""
    max_cwnd_bytes: int = 0
    """Largest window, and the first one; 0: 1.5 * link * base RTT, eight packets at least."""
    alpha: float = 0.0
    """Gain of the proportional increase, bytes per ns of delay to spare; 0: 4 * a * b * MTU / target,
    with a = BDP / 150 kB and b = target / 12 us, which scale UEC's reference network to this one."""
    fi: float = 0.0
    """Gain of the fair increase, bytes; 0: 5 * MTU * a."""
    fi_scale: float = 0.0
    """Gain of the fast increase, as a part of the bytes acknowledged; 0: 0.25 * a. Fast increase is for idle
    networks: once a whole window was acknowledged without any delay, until delay shows."""
    fast_delay_ns: int = 1_000
    """Delay below this counts as none at all."""
    eta: float = 0.0
    """Bytes added in every adjustment period, so that nobody starves; 0: 0.15 * MTU * a."""
    gamma: float = 0.8
    """Strength of the multiplicative decrease."""
    max_md_jump: float = 0.5
    """Least factor of one multiplicative decrease."""
    delay_weight: float = 0.0125
    """Weight of a new sample in the average delay, which decides how far a decrease goes."""
    adjust_bytes_threshold: int = 0
    """Acknowledged bytes after which gathered increases take effect; 0: 8 * MTU."""
    adjust_period_ns: int = 0
    """Time after which they do at the latest; 0: one base RTT."""
    disable_qa: bool = False
    """Never quick adapt."""
    qa_gate: int = 3
    """Quick adapt only while less than max_cwnd / 2^gate was delivered in its period."""
    qa_threshold_ns: int = 0
    """Delay that calls for quick adapt without any loss; 0: 4 * target, or what a full queue takes where that
    is known and longer."""

    def __post_init__(self) -> None:
        if self.base_rtt_ns < 1 or self.link_bps < 1:
            raise ValueError("nscc: base_rtt_ns and link_bps must be positive")
        if not (self.gamma >= 0 and 0 < self.max_md_jump <= 1 and 0 < self.delay_weight <= 1):
            raise ValueError("nscc: max_md_jump and delay_weight must be in (0, 1], gamma not negative")

    def resolve(self, mtu_bytes: int, *, trim: bool, queue_ns: int = 0) -> NsccConfig:
        """Return the same knobs with every derived value put in.

        `queue_ns` is the delay of a full queue; 0: unknown. Quick adapt is for delay out of all proportion,
        and UEC's queues, which trim at 1.5 base RTTs, never get as far as 4 targets. Deeper ones do, and then
        delay alone would call for it again and again: who is slow just then would be kept slow.
        """
        bdp = self.link_bps * self.base_rtt_ns / 8e9
        a = bdp / _REFERENCE_BDP_BYTES
        target = self.target_delay_ns or (self.base_rtt_ns * 3 // 4 if trim else self.base_rtt_ns)
        b = target / _REFERENCE_RTT_NS
        return replace(
            self,
            target_delay_ns=target,
            max_cwnd_bytes=self.max_cwnd_bytes or max(int(1.5 * bdp), 8 * mtu_bytes),
            alpha=self.alpha or 4 * a * b * mtu_bytes / target,
            fi=self.fi or 5 * mtu_bytes * a,
            fi_scale=self.fi_scale or 0.25 * a,
            eta=self.eta or 0.15 * mtu_bytes * a,
            adjust_bytes_threshold=self.adjust_bytes_threshold or 8 * mtu_bytes,
            adjust_period_ns=self.adjust_period_ns or self.base_rtt_ns,
            qa_threshold_ns=self.qa_threshold_ns or max(4 * target, queue_ns),
        )


class Nscc:
    """The window of one destination."""

    def __init__(self, config: NsccConfig, mtu_bytes: int, *, trim: bool, queue_ns: int = 0) -> None:
        self._given = config
        self._trim = trim
        self._queue_ns = queue_ns
        self.config = config.resolve(mtu_bytes, trim=trim, queue_ns=queue_ns)
        self._min_cwnd = mtu_bytes
        self._cwnd = float(self.config.max_cwnd_bytes)
        self.average_delay_ns = 0.0
        self._increase = 0.0
        """Gathered increases, bytes times bytes: divided by the window when they take effect."""
        self._since_adjust = 0
        """Bytes acknowledged since the last adjustment."""
        self._adjusted_ns: int | None = None
        self._eta_ns = 0
        self._decreased_ns: int | None = None
        self._achieved = 0
        """Bytes acknowledged in this period of quick adapt."""
        self._qa_end_ns: int | None = None
        self._qa_wanted = False
        self._ignore_bytes = 0
        """What was in flight at the last quick adapt: its marks belong to the old window."""
        self._idle_bytes = 0
        """Bytes acknowledged in a row without any delay."""
        self._penalty = 0
        """Bytes the receiver took off and may give back."""

    @property
    def cwnd_bytes(self) -> int:
        """The window, whole bytes."""
        return int(self._cwnd)

    def calibrate(self, base_rtt_ns: int) -> None:
        """Take another base RTT, a measured one, and all that is derived from it; the window begins anew."""
        self._given = replace(self._given, base_rtt_ns=base_rtt_ns)
        self.config = self._given.resolve(self._min_cwnd, trim=self._trim, queue_ns=self._queue_ns)
        self._cwnd = float(self.config.max_cwnd_bytes)

    def _set(self, cwnd: float) -> None:
        self._cwnd = min(max(cwnd, float(self._min_cwnd)), float(self.config.max_cwnd_bytes))

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool, inflight: int) -> None:
        """Take in an acknowledgement of `acked_bytes`; `rtt_ns` is None where it is ambiguous."""
        c = self.config
        self._achieved += acked_bytes
        self._since_adjust += acked_bytes
        if self._adjusted_ns is None:
            self._adjusted_ns = self._eta_ns = now_ns
        ignored = self._ignore_bytes > 0
        self._ignore_bytes = max(0, self._ignore_bytes - acked_bytes)
        if rtt_ns is None:
            return
        delay = max(0, rtt_ns - c.base_rtt_ns)
        self.average_delay_ns += c.delay_weight * (delay - self.average_delay_ns)
        if ecn and delay < c.target_delay_ns:
            return
        if self._quick_adapt(now_ns, delay >= c.qa_threshold_ns, inflight):
            return
        if ecn:
            if not ignored:
                self._decrease(now_ns)
        elif delay >= c.target_delay_ns:
            self._idle_bytes = 0
            self._increase += c.fi * acked_bytes
        elif not self._fast_increase(acked_bytes, delay):
            self._increase += c.alpha * acked_bytes * (c.target_delay_ns - delay)
        due = now_ns - self._adjusted_ns >= c.adjust_period_ns
        if due or self._since_adjust >= c.adjust_bytes_threshold:
            self._fulfil(now_ns)

    def _fast_increase(self, acked_bytes: int, delay_ns: int) -> bool:
        if delay_ns >= self.config.fast_delay_ns:
            self._idle_bytes = 0
            return False
        self._idle_bytes += acked_bytes
        if self._idle_bytes <= self._cwnd:
            return False
        self._set(self._cwnd + acked_bytes * self.config.fi_scale)
        return True

    def _fulfil(self, now_ns: int) -> None:
        """Let the gathered increases take effect."""
        cwnd = self._cwnd + self._increase / self._cwnd
        if now_ns - self._eta_ns >= self.config.adjust_period_ns:
            cwnd += self.config.eta
            self._eta_ns = now_ns
        self._set(cwnd)
        self._increase = 0.0
        self._since_adjust = 0
        self._adjusted_ns = now_ns

    def _decrease(self, now_ns: int) -> None:
        """Multiplicative decrease, at most once per base RTT."""
        c = self.config
        self._idle_bytes = 0
        if self._decreased_ns is not None and now_ns - self._decreased_ns < c.base_rtt_ns:
            return
        average = self.average_delay_ns
        if average <= c.target_delay_ns:
            return
        self._set(self._cwnd * max(1 - c.gamma * (average - c.target_delay_ns) / average, c.max_md_jump))
        self._decreased_ns = now_ns

    def _quick_adapt(self, now_ns: int, wanted: bool, inflight: int) -> bool:
        """After each period of base RTT + target: jump to what was delivered, if that is called for."""
        c = self.config
        if self._qa_end_ns is not None and now_ns < self._qa_end_ns:
            return False
        first = self._qa_end_ns is None
        achieved, self._achieved = self._achieved, 0
        self._qa_end_ns = now_ns + c.base_rtt_ns + c.target_delay_ns
        wanted = (wanted or self._qa_wanted) and not c.disable_qa
        if first or not wanted or achieved >= c.max_cwnd_bytes >> c.qa_gate:
            return False
        self._qa_wanted = False
        self._set(min(self._cwnd, float(achieved)))
        self._ignore_bytes = inflight
        self._increase = 0.0
        self._idle_bytes = 0
        return True

    def on_loss(self, now_ns: int, lost_bytes: int, inflight: int) -> None:
        """Shrink the window by a trimmed or lost packet; quick adapt may follow."""
        self._idle_bytes = 0
        self._set(self._cwnd - lost_bytes)
        self._qa_wanted = True
        self._quick_adapt(now_ns, True, inflight)

    def on_receiver(self, penalty: int, restore: bool, rcvd_bytes: int) -> None:
        """Narrow the window by penalty/128 of what was received, or give back all that was taken so."""
        if restore:
            self._set(self._cwnd + self._penalty)
            self._penalty = 0
        elif penalty:
            before = self._cwnd
            self._set(before - (penalty * rcvd_bytes >> 7))
            self._penalty += int(before - self._cwnd)
