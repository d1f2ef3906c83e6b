"""NSCC, the window-based congestion control of MRC ("uet-1.0-nscc" [API], UEC 1.0.3 §3.6.13, SPEC §8).

Each acknowledgement falls into one of four quadrants [SPEC Table 8-1]; delay is the RTT less the base RTT:

                  delay < target           delay >= target
    no ECN        proportional increase    fair increase
    ECN           nothing                  multiplicative decrease

ECN without delay means that some paths are congested and others are not: spraying mends that, so the window
stays. Increases are gathered and take effect ("fulfilled") after every `adjust_bytes_threshold` bytes and
every `adjust_period_ns`; a decrease comes at most once per base RTT.

An inferred (silent) loss costs its size and nothing more: a path failed, which says nothing about congestion.
A trimmed packet says that a queue was full: it may call for *quick adapt*, which sets the window to the bytes
acknowledged during the last period of base RTT + target. If switches do not trim, a delay above
`qa_threshold_ns` may call for it too.

A receiver that cannot keep up sends a penalty with its SACKs (`rcv_cwnd_pen`). It takes a part of the
acknowledged bytes off the window, and no quadrant increases the window as long as it lasts.

All sizes are nominal [SPEC §8.3.1]: UDP length + 40 for each packet. Production values of MRC are unknown;
the defaults are UEC's."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from mrclab.hosts.mrc.config import NsccConfig


class Nscc:
    """The window of one destination."""

    def __init__(self, config: NsccConfig, mtu_bytes: int, *, trim: bool, queue_ns: int = 0) -> None:
        self._given = config
        self._trim = trim
        self._queue_ns = queue_ns
        self._min_cwnd = mtu_bytes
        self._start(config)
        self.average_delay_ns = 0.0
        self._samples: deque[tuple[int, int]] = deque()
        """Time and delay, ns, of the samples of the last base RTT, if the average is their mean."""
        self._samples_ns = 0
        """Sum of their delays."""
        self._increase = 0.0
        """Gathered increases, bytes times bytes: divided by the window when they take effect."""
        self._received = 0
        """Bytes acknowledged since increases took effect."""
        self._period_ns: int | None = None
        """When the present adjustment period began."""
        self._decreased_ns: int | None = None
        self._idle_bytes = 0
        """Bytes acknowledged in a row without any delay."""
        self._fast = False
        """The fast increase goes on."""
        self._achieved = 0
        """Bytes acknowledged in this period of quick adapt."""
        self._qa_end_ns = 0
        """When that period ends; 0: it has not begun."""
        self._trigger_qa = False
        """A packet was trimmed since the last quick adapt."""
        self._bytes_to_ignore = 0
        """Bytes in flight at the last quick adapt: their marks and trims belong to the window before."""
        self._bytes_ignored = 0
        """Bytes acknowledged or lost since then."""
        self._saved_cwnd = 0.0
        """The window before the receiver's penalty; 0: there is none to restore."""

    def _start(self, config: NsccConfig) -> None:
        self.config = config.resolve(self._min_cwnd, trim=self._trim, queue_ns=self._queue_ns)
        self.base_rtt_ns = config.base_rtt_ns
        """The smallest RTT known, ns; `config` has the one to begin with."""
        self._max_cwnd = self.config.max_cwnd_bytes
        self._set(float(config.first_cwnd_bytes or self._max_cwnd))

    @property
    def cwnd_bytes(self) -> int:
        """The window, whole bytes."""
        return int(self._cwnd)

    @property
    def max_cwnd_bytes(self) -> int:
        """The largest window at the present base RTT."""
        return self._max_cwnd

    def calibrate(self, base_rtt_ns: int) -> None:
        """Take another base RTT, a measured one, and derive its dependent values; the window starts again."""
        self._start(replace(self._given, base_rtt_ns=base_rtt_ns))

    def _set(self, cwnd: float) -> None:
        self._cwnd = min(max(cwnd, float(self._min_cwnd)), float(self._max_cwnd))

    def on_ack(
        self,
        now_ns: int,
        acked_bytes: int,
        rtt_ns: int | None,
        ecn: bool,
        inflight: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Take in an acknowledgement of `acked_bytes`; `rtt_ns` is None if the sample is not valid.

        `inflight` is the number of bytes in flight after it, and may be negative. `penalty` and `restore` are
        rcv_cwnd_pen and restore_cwnd of its CC_STATE.
        """
        self._received += acked_bytes
        self._achieved += acked_bytes
        self._bytes_ignored += acked_bytes
        if self._period_ns is None:
            self._period_ns = now_ns
        if penalty:
            self._penalise(penalty, acked_bytes, inflight)
        elif restore and self._saved_cwnd:
            self._set(self._saved_cwnd)
            self._saved_cwnd = 0.0
        if rtt_ns is None or rtt_ns < 1:
            return
        if rtt_ns < self.base_rtt_ns:
            self._lower_base_rtt(rtt_ns)
        c = self.config
        delay = rtt_ns - self.base_rtt_ns
        self._average(now_ns, delay)
        if self._quick_adapt(now_ns, False, ecn, delay, inflight):
            return
        if delay >= c.fast_delay_ns and (
            c.fast_ends_by_marks or not (ecn or penalty or delay >= c.target_delay_ns)
        ):
            self._end_fast_increase()
        if ecn:
            if delay >= c.target_delay_ns:
                self._decrease(now_ns)
        elif not penalty:
            if delay >= c.target_delay_ns:
                self._increase += c.fi * acked_bytes
            elif not self._fast_increase(acked_bytes, delay):
                self._increase += c.alpha * acked_bytes * (c.target_delay_ns - delay)
        period_over = now_ns - self._period_ns >= c.adjust_period_ns
        if period_over or self._received > c.adjust_bytes_threshold:
            self._fulfil(now_ns, period_over)

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Take a smaller RTT that a NACK shows as the base, if NACKs may lower it."""
        if self.config.nack_rtt and 0 < rtt_ns < self.base_rtt_ns:
            self._lower_base_rtt(rtt_ns)

    def on_inferred_loss(self, lost_bytes: int) -> None:
        """Take the size of packets that were lost silently off the window."""
        self._bytes_ignored += lost_bytes
        self._set(self._cwnd - lost_bytes)

    def on_trim(self, now_ns: int, lost_bytes: int, inflight: int) -> None:
        """Take in a NACK for a trimmed packet, wherever it was trimmed: MRC has no receiver credits.

        The delay before the cut is unknown, so the average is fed with the configured base RTT.
        """
        self._average(now_ns, self.config.base_rtt_ns)
        self._bytes_ignored += lost_bytes
        self._trigger_qa = True
        if not self._quick_adapt(now_ns, True, True, 0, inflight):
            self._set(self._cwnd - lost_bytes)

    def _penalise(self, penalty: int, acked_bytes: int, inflight: int) -> None:
        """Take penalty/128 of the acknowledged bytes off the used part of the window."""
        if not self._saved_cwnd:
            self._saved_cwnd = self._cwnd
        self._set(min(self._cwnd, float(inflight)) - (penalty * acked_bytes >> 7))

    def _lower_base_rtt(self, rtt_ns: int) -> None:
        """Take a smaller RTT as the base; of the values derived from it the largest window alone follows."""
        self.base_rtt_ns = rtt_ns
        if not self._given.max_cwnd_bytes:
            self._max_cwnd = self.config.max_window(rtt_ns, self._min_cwnd)
            self._set(self._cwnd)

    def _average(self, now_ns: int, delay_ns: int) -> None:
        weight = self.config.delay_weight
        if weight:
            self.average_delay_ns += weight * (delay_ns - self.average_delay_ns)
            return
        samples = self._samples
        samples.append((now_ns, delay_ns))
        self._samples_ns += delay_ns
        while now_ns - samples[0][0] > self.base_rtt_ns:
            self._samples_ns -= samples.popleft()[1]
        self.average_delay_ns = self._samples_ns / len(samples)

    def _end_fast_increase(self) -> None:
        self._idle_bytes = 0
        self._fast = False

    def _fast_increase(self, acked_bytes: int, delay_ns: int) -> bool:
        """Grow by a part of `acked_bytes` once a whole window met no delay; return whether it did."""
        if delay_ns >= self.config.fast_delay_ns:
            return False
        self._idle_bytes += acked_bytes
        if self._idle_bytes <= self._cwnd and not self._fast:
            return False
        self._fast = True
        self._set(self._cwnd + acked_bytes * self.config.fi_scale)
        return True

    def _fulfil(self, now_ns: int, period_over: bool) -> None:
        """Let the gathered increases take effect."""
        cwnd = self._cwnd + self._increase / self._cwnd
        if period_over:
            cwnd += self.config.eta
            self._period_ns = now_ns
        self._set(cwnd)
        self._increase = 0.0
        self._received = 0

    def _decrease(self, now_ns: int) -> None:
        """Decrease multiplicatively, at most once per base RTT."""
        if self._decreased_ns is not None and now_ns - self._decreased_ns < self.base_rtt_ns:
            return
        c = self.config
        average = self.average_delay_ns
        if average <= c.target_delay_ns:
            return
        self._set(self._cwnd * max(1 - c.gamma * (average - c.target_delay_ns) / average, c.max_md_jump))
        self._decreased_ns = now_ns
        self._end_fast_increase()

    def _quick_adapt(self, now_ns: int, trimmed: bool, ecn: bool, delay_ns: int, inflight: int) -> bool:
        """Jump to the bytes acknowledged in a period of base RTT + target, if that is called for.

        Return whether the caller must leave the window alone: because it jumped, or because a mark or a trim
        is still about bytes in flight at the time of the jump.
        """
        c = self.config
        if c.disable_qa:
            return False
        acted = ecn and self._bytes_ignored < self._bytes_to_ignore
        if not acted and now_ns >= self._qa_end_ns:
            wanted = self._trigger_qa or trimmed or delay_ns > c.qa_threshold_ns
            if self._qa_end_ns and wanted and self._achieved < self._max_cwnd >> c.qa_gate:
                acted = True
                self._set(float(self._achieved))
                self._bytes_to_ignore = inflight
                self._bytes_ignored = 0
                self._trigger_qa = False
            self._achieved = 0
            self._qa_end_ns = now_ns + self.base_rtt_ns + c.target_delay_ns
        if acted:
            self._increase = 0.0
            self._received = 0
        return acted
