"""NSCC, the window-based congestion control of MRC ("uet-1.0-nscc" [API], UEC 1.0.3 §3.6.13, SPEC §8).

The delay is the RTT minus the base RTT. Delay and mark of an acknowledgement decide how the window changes.
There are four cases (*quadrants*, SPEC Table 8-1):

                  delay < target           delay >= target
    no ECN        proportional increase    fair increase
    ECN           nothing                  multiplicative decrease

ECN without delay means that some paths are congested and others are not. Spraying moves packets to the other
paths, so the window does not change. Increases are summed. The sum is applied to the window after more than
`adjust_bytes_threshold` bytes or after `adjust_period_ns`. There is at most one decrease per base RTT.

An inferred (silent) loss lowers the window only by the lost bytes: the path failed, so the loss is no sign of
congestion. A trimmed packet means that a queue was full. The trim may start *quick adapt*, which sets the
window to the bytes acknowledged during the last period of base RTT + target. If switches do not trim, a delay
above `qa_threshold_ns` may start quick adapt, too.

A receiver that is too slow sends a penalty with its SACKs (`rcv_cwnd_pen`). During the penalty, a part of the
acknowledged bytes is subtracted from the window, and no quadrant increases the window.

All sizes are nominal [SPEC §8.3.1]: UDP length + 40 for each packet. The parameters of production networks
with MRC are unknown; the defaults are UEC's."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from mrclab.hosts.mrc.config import NsccConfig


class Nscc:
    """The congestion window for one destination."""

    def __init__(self, config: NsccConfig, mtu_bytes: int, *, trim: bool, queue_ns: int = 0) -> None:
        self._given = config
        self._trim = trim
        self._queue_ns = queue_ns
        self._min_cwnd = mtu_bytes
        self._start(config)
        self.average_delay_ns = 0.0
        self._samples: deque[tuple[int, int]] = deque()
        """Time and delay, ns, of the samples of the last base RTT; used if `delay_weight` is 0."""
        self._samples_ns = 0
        """Sum of the delays in `_samples`, ns."""
        self._increase = 0.0
        """Sum of the increases, in bytes times bytes. It is divided by the window when it is applied."""
        self._received = 0
        """Bytes acknowledged since the sum of the increases was last applied."""
        self._period_ns: int | None = None
        """Start of the present adjustment period."""
        self._decreased_ns: int | None = None
        self._idle_bytes = 0
        """Bytes acknowledged in a row without any delay."""
        self._fast = False
        """True: the fast increase is active."""
        self._achieved = 0
        """Bytes acknowledged in the present period of quick adapt."""
        self._qa_end_ns = 0
        """End of the present period of quick adapt; 0: no period has begun."""
        self._trigger_qa = False
        """True: a packet was trimmed since the last quick adapt."""
        self._bytes_to_ignore = 0
        """Bytes in flight at the last quick adapt. The old window caused their marks, so ignore the marks."""
        self._bytes_ignored = 0
        """Bytes acknowledged or lost since the last quick adapt."""
        self._saved_cwnd = 0.0
        """The window before the receiver's penalty; 0: no penalty is active."""

    def _start(self, config: NsccConfig) -> None:
        self.config = config.resolve(self._min_cwnd, trim=self._trim, queue_ns=self._queue_ns)
        self.base_rtt_ns = config.base_rtt_ns
        """The smallest RTT so far, ns. It starts with the value of `config`."""
        self._max_cwnd = self.config.max_cwnd_bytes
        self._set(float(config.first_cwnd_bytes or self._max_cwnd))

    @property
    def cwnd_bytes(self) -> int:
        """The window, in whole bytes."""
        return int(self._cwnd)

    @property
    def max_cwnd_bytes(self) -> int:
        """The largest window at the present base RTT."""
        return self._max_cwnd

    def calibrate(self, base_rtt_ns: int) -> None:
        """Restart with a measured base RTT, and with the initial congestion window."""
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
        """Handle an acknowledgement of `acked_bytes`; `rtt_ns` is None if there is no valid sample.

        `inflight` is the number of bytes in flight after the acknowledgement, and may be negative. `penalty`
        and `restore` are rcv_cwnd_pen and restore_cwnd of the acknowledgement's CC_STATE.
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
        """Use the RTT of a NACK as the base RTT if it is smaller and the options allow it."""
        if self.config.nack_rtt and 0 < rtt_ns < self.base_rtt_ns:
            self._lower_base_rtt(rtt_ns)

    def on_inferred_loss(self, lost_bytes: int) -> None:
        """Subtract the size of silently lost packets from the window."""
        self._bytes_ignored += lost_bytes
        self._set(self._cwnd - lost_bytes)

    def on_trim(self, now_ns: int, lost_bytes: int, inflight: int) -> None:
        """Handle a NACK for a trimmed packet. It does not matter which switch trimmed the packet.

        The packet's delay is unknown, so the average delay is updated with the configured base RTT instead.
        """
        self._average(now_ns, self.config.base_rtt_ns)
        self._bytes_ignored += lost_bytes
        self._trigger_qa = True
        if not self._quick_adapt(now_ns, True, True, 0, inflight):
            self._set(self._cwnd - lost_bytes)

    def _penalise(self, penalty: int, acked_bytes: int, inflight: int) -> None:
        """Lower the window to the bytes in flight, and then by penalty/128 of the acknowledged bytes."""
        if not self._saved_cwnd:
            self._saved_cwnd = self._cwnd
        self._set(min(self._cwnd, float(inflight)) - (penalty * acked_bytes >> 7))

    def _lower_base_rtt(self, rtt_ns: int) -> None:
        """Set a smaller base RTT. Of its dependent values, change only the largest allowed window."""
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
        """If a whole window of packets had almost no delay, grow the congestion window and return True.

        The congestion window grows by a part of `acked_bytes`.
        """
        if delay_ns >= self.config.fast_delay_ns:
            return False
        self._idle_bytes += acked_bytes
        if self._idle_bytes <= self._cwnd and not self._fast:
            return False
        self._fast = True
        self._set(self._cwnd + acked_bytes * self.config.fi_scale)
        return True

    def _fulfil(self, now_ns: int, period_over: bool) -> None:
        """Apply the sum of the increases to the window; if an adjustment period is over, add `eta`, too."""
        cwnd = self._cwnd + self._increase / self._cwnd
        if period_over:
            cwnd += self.config.eta
            self._period_ns = now_ns
        self._set(cwnd)
        self._increase = 0.0
        self._received = 0

    def _decrease(self, now_ns: int) -> None:
        """Decrease the window multiplicatively, at most once per base RTT."""
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
        """After a trim or a long delay, set the window to the bytes acknowledged in the last period.

        Return True if the caller must not change the window: quick adapt has just set the window, or the
        marked or trimmed packet was in flight at the last quick adapt.
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
