"""Model the NSCC congestion control in plain arithmetic, for tests.

The model's author read only the description in UEC 1.0.3 section 3.6.13, and not `mrclab.hosts.mrc`. The
model imports nothing from there.

The caller counts the bytes in flight and passes this count *after* the ACK or NACK. The count may be
negative. All byte counts are nominal sizes (UDP length + 40).

If the text of UEC can be read in several ways, this model uses the following reading.

 1. Start: cwnd = max_wnd. The average delay, quick adapt's end and all byte counts are 0.
 2. Bounds: MTU <= cwnd <= max_wnd after every change. The text has the upper bound only under Fulfil.
    Here, if max_wnd falls with base_rtt, cwnd is limited at once.
 3. max_wnd is max_cwnd_bytes, or 1.5 BDP if that is not given, but at least 8 MTU (lab setting).
 4. A value given to the constructor (target, qa_threshold, max_cwnd) replaces the computed value and
    does not follow base_rtt. A given qa_threshold also applies with trimming.
 5. qa_threshold without trimming is 4 * target, even if a given target is not base_rtt.
 6. An RTT sample of 0 or less is not valid. A sample below base_rtt lowers base_rtt first, so its delay
    is 0. The average is not reset then. This model has no probe for the first value of base_rtt.
 7. Average delay: avg += w * (delay - avg), on every ACK with a valid RTT, marked or not.
 8. A trim NACK adds a *delay* (not an RTT) to the average: the base RTT given to the constructor,
    which never falls.
 9. A penalty also acts without an RTT. The saved cwnd is kept until a restore uses it, even if ACKs with
    pen = 0 and no restore bit come before. A restore has no effect if nothing is saved or if pen > 0.
10. Fulfil (inc and eta) also runs under a penalty. A penalty stops only the three kinds of new increase:
    fair, proportional and fast.
11. Fast increase is a part of the proportional quadrant, so it needs an ACK with no mark and pen = 0.
    This quadrant counts the bytes with delay < fast_delay_ns. The ACK that takes the count above cwnd
    is the first with fast increase. Fast increase ends when an ACK that reaches the quadrants, marked
    or not, has a delay of fast_delay_ns or more. Fast increase is added to proportional increase. If
    FAST_REPLACES is set, fast increase replaces proportional increase.
12. The adjust period starts at the first ACK and has passed if `now - start >= period`. Only then does
    the period start again. Then eta is added once, even after a long gap. Whenever Fulfil acts (because
    of the period or of the byte count), inc and received become 0.
13. Decrease: only if avg > target (otherwise cwnd would grow), and if base_rtt has passed since the
    last decrease. The first decrease does not wait. A decrease does not change inc_bytes.
14. Quick adapt: max_wnd >> qa_gate is an integer shift. cwnd = max(achieved, MTU) may also raise cwnd.
    If quick adapt sets cwnd or ignores the ACK, inc_bytes and received become 0. The trigger of a trim
    NACK is kept until quick adapt sets cwnd, even if quick adapt ignores that NACK.
15. With disable_qa, quick adapt never sets cwnd and never ignores an ACK.
"""

import math


class NsccModel:
    """Compute one congestion window as NSCC does."""

    FAST_REPLACES = False  # True: fast increase replaces proportional increase (choice 11)

    def __init__(
        self,
        base_rtt_ns: float,
        link_bps: float,
        mtu_bytes: int,
        trim: bool,
        *,
        qa_threshold_ns: float | None = None,
        qa_gate: int = 3,
        gamma: float = 0.8,
        max_md_jump: float = 0.5,
        delay_weight: float = 0.0125,
        fast_delay_ns: float = 1000,
        target_delay_ns: float | None = None,
        max_cwnd_bytes: float | None = None,
        disable_qa: bool = False,
    ) -> None:
        """Store the settings and start with a full window."""
        self.config_base_rtt, self.base_rtt = base_rtt_ns, base_rtt_ns
        self.link_bps, self.mtu, self.trim = link_bps, mtu_bytes, trim
        self.given_qa, self.given_target, self.given_max = (qa_threshold_ns, target_delay_ns, max_cwnd_bytes)
        self.qa_gate, self.gamma, self.max_md_jump = qa_gate, gamma, max_md_jump
        self.delay_weight, self.fast_delay = delay_weight, fast_delay_ns
        self.disable_qa = disable_qa
        self.avg_delay, self.inc_bytes, self.fast_count, self.fast = 0.0, 0.0, 0, False
        self.received = self.achieved = 0
        self.bytes_ignored, self.bytes_to_ignore, self.trigger, self.qa_end = 0, 0, False, 0.0
        self.saved_cwnd: float | None = None
        self.adjust_start: float | None = None
        self.last_decrease: float | None = None
        self.cwnd = math.inf
        self._derive()  # limits cwnd to max_wnd

    def _derive(self) -> None:
        """Compute every constant that depends on base_rtt."""
        mtu, bdp = self.mtu, self.link_bps * self.base_rtt / 8e9
        default_target = (0.75 if self.trim else 1.0) * self.base_rtt
        self.target = default_target if self.given_target is None else self.given_target
        a, b = bdp / 150_000, self.target / 12_000
        self.fi, self.fi_scale, self.eta = 5 * mtu * a, 0.25 * a, 0.15 * mtu * a
        self.alpha = 4 * a * b * mtu / self.target
        self.adjust_bytes, self.adjust_period = 8 * mtu, self.base_rtt
        default_qa = math.inf if self.trim else 4 * self.target
        self.qa_threshold = default_qa if self.given_qa is None else self.given_qa
        self.max_wnd = max(8.0 * mtu, 1.5 * bdp if self.given_max is None else self.given_max)
        self._set(self.cwnd)

    def _set(self, cwnd: float) -> None:
        """Store the window within its bounds."""
        self.cwnd = float(min(max(cwnd, self.mtu), self.max_wnd))

    def _average(self, delay: float) -> None:
        """Add this delay to the moving average."""
        self.avg_delay += self.delay_weight * (delay - self.avg_delay)

    def on_ack(
        self,
        now_ns: float,
        newly_bytes: int,
        rtt_ns: float | None,
        ecn: bool,
        inflight_bytes: int,
        penalty: int = 0,
        restore: bool = False,
    ) -> None:
        """Process an ACK: counts, penalty, delay, quick adapt, quadrant, Fulfil."""
        if self.adjust_start is None:
            self.adjust_start = now_ns
        self.received += newly_bytes
        self.achieved += newly_bytes
        self.bytes_ignored += newly_bytes
        self._penalise(newly_bytes, inflight_bytes, penalty, restore)
        if rtt_ns is None or rtt_ns <= 0:
            return
        if rtt_ns < self.base_rtt:
            self.base_rtt = rtt_ns
            self._derive()
        delay = rtt_ns - self.base_rtt
        self._average(delay)
        if self._quick_adapt(now_ns, False, ecn, delay, inflight_bytes):
            return
        if delay >= self.fast_delay:
            self.fast_count, self.fast = 0, False
        if ecn and delay >= self.target:
            self._decrease(now_ns)
        elif not ecn and penalty == 0:
            if delay >= self.target:
                self.inc_bytes += self.fi * newly_bytes
            else:
                self._grow(newly_bytes, delay)
        self._fulfil(now_ns)

    def _penalise(self, newly: int, inflight: int, penalty: int, restore: bool) -> None:
        """Cut the window by the receiver's penalty, or restore the saved window."""
        if penalty:
            if self.saved_cwnd is None:
                self.saved_cwnd = self.cwnd
            self._set(min(self.cwnd, inflight) - ((penalty * newly) >> 7))
        elif restore and self.saved_cwnd is not None:
            self._set(self.saved_cwnd)
            self.saved_cwnd = None

    def _grow(self, newly: int, delay: float) -> None:
        """Grow the window in proportion to target minus delay, and fast if the path was empty for long."""
        if delay < self.fast_delay:
            self.fast_count += newly
            self.fast = self.fast or self.fast_count > self.cwnd
        if self.fast:
            self._set(self.cwnd + newly * self.fi_scale)
        if not (self.fast and self.FAST_REPLACES):
            self.inc_bytes += self.alpha * newly * (self.target - delay)

    def _decrease(self, now: float) -> None:
        """Cut the window in proportion to average delay minus target, at most once per base RTT."""
        due = self.last_decrease is None or now - self.last_decrease >= self.base_rtt
        if due and self.avg_delay > self.target:
            cut = self.gamma * (self.avg_delay - self.target) / self.avg_delay
            self._set(self.cwnd * max(1 - cut, self.max_md_jump))
            self.last_decrease = now

    def _fulfil(self, now: float) -> None:
        """Add the saved increase to the window when the period has passed or enough bytes have arrived."""
        assert self.adjust_start is not None
        period_passed = now - self.adjust_start >= self.adjust_period
        if period_passed or self.received > self.adjust_bytes:
            eta = self.eta if period_passed else 0.0
            self._set(self.cwnd + self.inc_bytes / self.cwnd + eta)
            self.inc_bytes, self.received = 0.0, 0
            if period_passed:
                self.adjust_start = now

    def _quick_adapt(self, now: float, loss: bool, marked: bool, delay: float, inflight: int) -> bool:
        """Set the window to the arrived bytes. Return True if this is done, or if the ACK is ignored."""
        if self.disable_qa:
            return False
        acted = marked and self.bytes_ignored < self.bytes_to_ignore  # True: the ACK is ignored
        if not acted and now >= self.qa_end:
            reason = self.trigger or loss or delay > self.qa_threshold
            if self.qa_end != 0 and reason and self.achieved < int(self.max_wnd) >> self.qa_gate:
                self._set(self.achieved)
                self.bytes_to_ignore, self.bytes_ignored, self.trigger = inflight, 0, False
                acted = True
            self.achieved, self.qa_end = 0, now + self.base_rtt + self.target
        if acted:
            self.inc_bytes, self.received = 0.0, 0
        return acted

    def on_inferred_loss(self, lost_bytes: int) -> None:
        """Process an inferred loss: subtract the lost bytes from the window. Quick adapt never acts here."""
        self.bytes_ignored += lost_bytes
        self._set(self.cwnd - lost_bytes)

    def on_trim_nack(self, now_ns: float, lost_bytes: int, inflight_bytes: int) -> None:
        """Process a NACK with reason TRIMMED or LASTHOP. Without receiver credits, their effect is equal."""
        self._average(self.config_base_rtt)
        self.bytes_ignored += lost_bytes
        self.trigger = True
        if not self._quick_adapt(now_ns, True, True, 0.0, inflight_bytes):
            self._set(self.cwnd - lost_bytes)

    def on_other_nack(self, lost_bytes: int) -> None:
        """Process a NACK with a reason other than trimming. Only the caller's inflight count changes."""
