"""Congestion control: how much may be sent now. The seam, and the two plainest things that fit it.

A requester asks once per burst for its `budget_bytes` and says afterwards what it used; everything else is
told once per SACK or NACK. Nothing here is called per packet.

A controller belongs to a destination and may govern several queue pairs (a "QPCC" [API]); all sizes it is
told are payload plus its own `overhead_bytes` per packet.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from mypy_extensions import mypyc_attr

from hosts.mrc.nscc import Nscc

if TYPE_CHECKING:
    from hosts.mrc.config import MrcConfig


NO_END_NS: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class CongestionControl:
    """What the requester tells and asks. By itself a window that never changes.

    Derive from it to try a control of your own, and hand that to `Endpoint`; it need not be compiled.
    """

    shared = False
    """One controller governs all queue pairs to a destination, rather than one each."""
    paced = False
    """Time alone can make the budget positive; `next_send_ns` says when."""
    overhead_bytes = 0
    """What a packet counts beyond its payload."""

    def __init__(self, cwnd_bytes: int) -> None:
        self.cwnd_bytes = cwnd_bytes
        """Bytes that may be in flight."""
        self.inflight_bytes = 0
        """Bytes in flight, over all queue pairs governed."""
        self.waiting: deque[Any] = deque()
        """Queue pairs with something to send that found the window closed; kept by the endpoint."""

    def budget_bytes(self, now_ns: int) -> int:
        """Return what may be sent now: while it is positive a packet may start [SPEC §8: cwnd > inflight]."""
        return self.cwnd_bytes - self.inflight_bytes

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when time alone makes the budget positive; None when only an acknowledgement can."""
        return None

    def pause_ns(self, size: int) -> int:
        """Return for how long nothing may be sent once `size` more is, unless an acknowledgement comes."""
        return NO_END_NS

    def on_sent(self, now_ns: int, size: int) -> None:
        """Packets of this size altogether went out."""
        self.inflight_bytes += size

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """A SACK took `acked_bytes` out of flight; `rtt_ns` is None where the sample would be ambiguous."""
        self.inflight_bytes -= acked_bytes

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """A switch trimmed a packet; at the last hop it says incast, elsewhere a congested path."""
        self.inflight_bytes -= lost_bytes

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Packets were inferred lost."""
        self.inflight_bytes -= lost_bytes

    def on_withdrawn(self, size: int) -> None:
        """Packets left flight for reasons that say nothing about congestion."""
        self.inflight_bytes -= size

    def on_receiver(self, now_ns: int, penalty: int, restore: bool, rcvd_bytes: int) -> None:
        """CC_STATE of a SACK: the receiver wants the window smaller by penalty/128 of `rcvd_bytes`."""

    def calibrate(self, base_rtt_ns: int) -> None:
        """The RTT of the idle network was measured, for controls that know queues by their delay."""

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the cap, in bit/s. Raise ValueError on a control without one."""
        raise ValueError("only congestion control 'rate' has a rate cap")


class FixedWindow(CongestionControl):
    """A window that never changes, one for each queue pair: no control beyond spraying and skipping."""


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


class NsccControl(CongestionControl):
    """`nscc.Nscc` as a controller: adds the account of what is in flight."""

    shared = True
    overhead_bytes = 84
    """UDP length + 40 [SPEC §8.3.1] less the payload: UDP 8, BTH 12, METH 4, RETH 16, ICRC 4, and 40."""

    def __init__(self, nscc: Nscc) -> None:
        super().__init__(nscc.cwnd_bytes)
        self.nscc = nscc

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Let the quadrants decide."""
        self.inflight_bytes -= acked_bytes
        self.nscc.on_ack(now_ns, acked_bytes, rtt_ns, ecn, self.inflight_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Trims lower the window wherever they happen; the EV is another matter."""
        self.on_loss(now_ns, lost_bytes)

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Lower the window by what was lost."""
        self.inflight_bytes -= lost_bytes
        self.nscc.on_loss(now_ns, lost_bytes, self.inflight_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_receiver(self, now_ns: int, penalty: int, restore: bool, rcvd_bytes: int) -> None:
        """Obey the receiver."""
        self.nscc.on_receiver(penalty, restore, rcvd_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def calibrate(self, base_rtt_ns: int) -> None:
        """Know delay from now on by what was measured."""
        self.nscc.calibrate(base_rtt_ns)
        self.cwnd_bytes = self.nscc.cwnd_bytes


def make_controller(config: MrcConfig) -> CongestionControl:
    """Return the controller that `config.congestion` names."""
    if config.congestion == "nscc":
        nscc = Nscc(config.nscc, config.mtu_bytes, trim=config.trim, queue_ns=config.queue_time_ns())
        return NsccControl(nscc)
    if config.congestion == "rate":
        return RateCap(config.cwnd_bytes, config.rate_bps, config.rate_burst_bytes, config.rate_quantum_bytes)
    return FixedWindow(config.cwnd_bytes)
