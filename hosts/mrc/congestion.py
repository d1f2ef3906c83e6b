"""Congestion control: how many bytes may be sent now.

A requester reads `budget_bytes` once per burst, and afterwards reports the sent bytes. The requester calls
the other methods once per SACK or NACK. It calls no method for each packet.

A congestion control belongs to one destination and may serve several queue pairs (a "QPCC" [API]). The sizes
that the requester reports are payload plus `overhead_bytes` for each packet.

This module has the interface, a fixed window, a rate cap for any congestion control, and events about the
window. `mrclab.hosts.mrc.nscc` has NSCC.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mypy_extensions import mypyc_attr

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.events import WindowChanged
from mrclab.hosts.mrc.nscc import Nscc
from mrclab.hosts.mrc.wire import METH_LEN, TSETH_LEN
from mrclab.hosts.rdma.events import Note
from mrclab.hosts.rdma.frames import BTH_LEN, ICRC_LEN, RETH_LEN, UDP_LEN

NO_END_NS: Final = 1 << 62


@mypyc_attr(allow_interpreted_subclasses=True)
class CongestionControl:
    """The methods that a requester calls. This base class is a window that never changes.

    To try another congestion control, derive a class and pass it to `Endpoint`. The classes of mrclab may be
    compiled by mypyc, but your class may be ordinary Python.
    """

    shared = False
    """True: all queue pairs to a destination share one congestion control. False: each queue pair has
    a separate congestion control."""
    paced = False
    """If True, the budget may become positive without an acknowledgement, at the time `next_send_ns`."""
    overhead_bytes = 0
    """Bytes of headers that are counted for each packet, in addition to its payload."""
    byte_ns = 0.0
    """Time to add to a short packet's RTT, in ns for each byte less than a full packet."""
    reads_rcvd_bytes = False
    """If True, the requester calls `on_arrived`."""

    def __init__(self, cwnd_bytes: int) -> None:
        self.cwnd_bytes = cwnd_bytes
        """Bytes that may be in flight."""
        self.inflight_bytes = 0
        """Bytes in flight, of all queue pairs that use this congestion control."""
        self.penalty = 0
        """rcv_cwnd_pen of the newest CC_STATE, in 128ths: the receiver asks for a smaller window."""
        self.restore = False
        """restore_cwnd of the newest CC_STATE: the window may return to its size before the penalty."""
        # A subclass that is not compiled may set these values in its class body. Compiled code reads only
        # the instance, so each value is copied into it.
        self.shared = bool(self._declared("shared"))
        self.paced = bool(self._declared("paced"))
        self.overhead_bytes = int(self._declared("overhead_bytes"))
        self.byte_ns = float(self._declared("byte_ns"))
        self.reads_rcvd_bytes = bool(self._declared("reads_rcvd_bytes"))

    def _declared(self, name: str) -> Any:
        return getattr(self, name)

    def budget_bytes(self, now_ns: int) -> int:
        """Return how many bytes may be sent now. A number above 0 allows a whole packet [SPEC §8]."""
        return self.cwnd_bytes - self.inflight_bytes

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when the budget becomes positive without an acknowledgement, ns; None: an ACK is needed."""
        return None

    def pause_ns(self, size: int) -> int:
        """Return how long the sender must wait after it sends `size` bytes, if no acknowledgement arrives."""
        return NO_END_NS

    def on_sent(self, now_ns: int, size: int) -> None:
        """Record that packets of `size` bytes in all were sent."""
        self.inflight_bytes += size

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Record that a SACK acknowledged bytes; `rtt_ns` is None if the RTT is ambiguous.

        `penalty` and `restore` already have the values of this SACK.
        """
        self.inflight_bytes -= acked_bytes

    def on_arrived(self, arrived_bytes: int) -> None:
        """Record how many bytes newly arrived at the peer. A call of `on_ack` follows.

        Each packet counts with its nominal size [SPEC §8.3.1].
        """

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Record the RTT of a NACK, ns. The requester calls this method before all others for this NACK."""

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Record a trimmed packet. A trim at the last hop means incast; other trims mean a congested path."""
        self.inflight_bytes -= lost_bytes

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Record that packets are assumed lost."""
        self.inflight_bytes -= lost_bytes

    def on_withdrawn(self, size: int) -> None:
        """Subtract `size` from the bytes in flight; this is no sign of congestion. A negative `size` adds."""
        self.inflight_bytes -= size

    def on_receiver(self, now_ns: int, penalty: int, restore: bool) -> None:
        """Record the rcv_cwnd_pen and restore_cwnd of a SACK. The values hold from this SACK on."""
        self.penalty = penalty
        self.restore = restore

    def calibrate(self, base_rtt_ns: int) -> None:
        """Set the measured RTT of the idle network. Congestion controls that use delay need this RTT."""

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the rate cap, in bit/s. Raise ValueError if the option `rate_bps` was not given."""
        raise ValueError("there is no rate cap: the option rate_bps sets one")


class FixedWindow(CongestionControl):
    """A window that never changes, one for each queue pair."""


class RateCap(CongestionControl):
    """A token bucket in front of a congestion control: payload is never sent faster than `rate_bps`.

    The bucket holds at most `burst_bytes`. The last packet of a burst may take more than the bucket holds.
    After the bucket was empty, packets wait until it holds `quantum_bytes`. Retransmissions are an exception:
    up to one burst of them may be sent at once. Later data then waits longer.

    The bucket counts payload, but the sizes that the methods get include overhead. So each size is multiplied
    by the payload share of a full packet: `mtu_bytes` divided by the sum of `mtu_bytes` and overhead.
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
        """Size of a full packet: payload and overhead, in bytes."""
        self._quantum = (quantum_bytes - 1) * 8_000_000_000
        """After the bucket was empty, packets wait until it holds more tokens than this."""
        self._used_up = False
        self._advance_bytes = 0
        """Bytes, with overhead, that may be sent after losses before the bucket has tokens for them."""
        self._most_advance_bytes = burst_bytes * self._full_bytes // mtu_bytes
        self.rate_bps = rate_bps
        self.burst_bytes = burst_bytes
        self._tokens = burst_bytes * 8_000_000_000
        """Tokens in bits per second times nanoseconds: an integer, so that nothing is lost by rounding."""
        self._filled_ns: int | None = None

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the rate at which the bucket fills, from the next refill on."""
        self.rate_bps = rate_bps

    def _fill(self, now_ns: int) -> None:
        if self._filled_ns is not None and now_ns > self._filled_ns:
            earned = (now_ns - self._filled_ns) * self.rate_bps
            self._tokens = min(self.burst_bytes * 8_000_000_000, self._tokens + earned)
        self._filled_ns = now_ns if self._filled_ns is None else max(now_ns, self._filled_ns)

    def budget_bytes(self, now_ns: int) -> int:
        """Return the smaller of the window's and the bucket's budget, rounded up to bytes."""
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
        """Return the tokens that packets of this size, with overhead, take out of the bucket."""
        return size * self._mtu_bytes * 8_000_000_000 // self._full_bytes

    def next_send_ns(self, now_ns: int) -> int | None:
        """Return when the bucket holds `quantum_bytes` again; None if the sender need not wait for it."""
        if not self._waits(now_ns) or self._advance_bytes > 0:
            return None
        return now_ns + (self._quantum - self._tokens) // self.rate_bps + 1

    def pause_ns(self, size: int) -> int:
        """Return how long the sender must wait for tokens after it sends `size` more bytes, ns.

        Return NO_END_NS if these bytes fill the window.
        """
        if self.inflight_bytes + size >= self.cwnd_bytes:
            return NO_END_NS
        return (self._quantum - self._tokens + self._cost(size)) // self.rate_bps + 1

    def on_sent(self, now_ns: int, size: int) -> None:
        """Take the tokens for `size` sent bytes out of the bucket."""
        self._window.on_sent(now_ns, size)
        self._follow()
        self._tokens -= self._cost(size)
        self._advance_bytes = max(0, self._advance_bytes - size)
        if self._tokens <= 0:
            self._used_up = True

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Allow the retransmission before the bucket has tokens for it."""
        self._window.on_loss(now_ns, lost_bytes)
        self._follow()
        self._advance_bytes = min(self._most_advance_bytes, self._advance_bytes + lost_bytes)

    # The methods below pass each call to the window that this rate cap limits.

    def _follow(self) -> None:
        self.cwnd_bytes = self._window.cwnd_bytes
        self.inflight_bytes = self._window.inflight_bytes

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Pass the acknowledgement to the window."""
        self._window.on_ack(now_ns, acked_bytes, rtt_ns, ecn)
        self._follow()

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Report the trimmed packet to the window."""
        self._window.on_trim(now_ns, lost_bytes, last_hop)
        self._follow()

    def on_arrived(self, arrived_bytes: int) -> None:
        """Report the arrived bytes to the window."""
        self._window.on_arrived(arrived_bytes)

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Pass the RTT to the window."""
        self._window.on_nack_rtt(rtt_ns)
        self._follow()

    def on_withdrawn(self, size: int) -> None:
        """Subtract `size` from the window's bytes in flight."""
        self._window.on_withdrawn(size)
        self._follow()

    def on_receiver(self, now_ns: int, penalty: int, restore: bool) -> None:
        """Pass the receiver's rcv_cwnd_pen and restore_cwnd to the window."""
        super().on_receiver(now_ns, penalty, restore)
        self._window.on_receiver(now_ns, penalty, restore)

    def calibrate(self, base_rtt_ns: int) -> None:
        """Pass the measured RTT to the window."""
        self._window.calibrate(base_rtt_ns)
        self._follow()


NOMINAL_OVERHEAD_BYTES: Final = UDP_LEN + BTH_LEN + METH_LEN + RETH_LEN + ICRC_LEN + 40
"""Nominal size of a packet (UDP length + 40 [SPEC §8.3.1]) without TSETH, minus its payload, in bytes. The
last packet of a message may have up to 7 more bytes of immediate data and padding."""


class NsccControl(CongestionControl):
    """`nscc.Nscc` as a congestion control, with a counter of the bytes in flight."""

    shared = True

    def __init__(self, nscc: Nscc, overhead_bytes: int = NOMINAL_OVERHEAD_BYTES) -> None:
        super().__init__(nscc.cwnd_bytes)
        self.nscc = nscc
        self.overhead_bytes = overhead_bytes
        self.byte_ns = nscc.config.byte_ns
        self.reads_rcvd_bytes = nscc.config.rcvd_bytes_clock
        self._arrived_bytes = 0

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Pass the acknowledgement to NSCC and take its new window."""
        self.inflight_bytes -= acked_bytes
        if self.reads_rcvd_bytes:
            acked_bytes = self._arrived_bytes
            self._arrived_bytes = 0
        self.nscc.on_ack(now_ns, acked_bytes, rtt_ns, ecn, self.inflight_bytes, self.penalty, self.restore)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_arrived(self, arrived_bytes: int) -> None:
        """Add bytes that have arrived, as the receiver reports.

        `on_ack` then passes their sum to NSCC, instead of the number of acknowledged bytes.
        """
        self._arrived_bytes += arrived_bytes

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Lower the base RTT, if the options allow it."""
        self.nscc.on_nack_rtt(rtt_ns)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Lower the window, no matter which switch trimmed the packet."""
        self.inflight_bytes -= lost_bytes
        self.nscc.on_trim(now_ns, lost_bytes, self.inflight_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Lower the window by the lost bytes."""
        self.inflight_bytes -= lost_bytes
        self.nscc.on_inferred_loss(lost_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def calibrate(self, base_rtt_ns: int) -> None:
        """Use the measured base RTT from now on."""
        self.nscc.calibrate(base_rtt_ns)
        self.cwnd_bytes = self.nscc.cwnd_bytes


def make_controller(
    config: MrcConfig, other: Callable[[MrcConfig], CongestionControl] | None = None
) -> CongestionControl:
    """Return the congestion control that `config.congestion` names, or the result of `other` if given.

    If `config` has a rate, add a rate cap.
    """
    window: CongestionControl = FixedWindow(config.cwnd_bytes)
    if other is not None:
        window = other(config)
    elif config.congestion == "nscc":
        nscc = Nscc(config.nscc, config.mtu_bytes, trim=config.trim, queue_ns=config.queue_time_ns())
        window = NsccControl(nscc, NOMINAL_OVERHEAD_BYTES + (TSETH_LEN if config.timestamps else 0))
    if not config.rate_bps:
        return window
    burst, quantum = config.rate_burst_bytes, config.rate_quantum_bytes
    return RateCap(window, config.rate_bps, burst, quantum, config.mtu_bytes)


class WindowReport:
    """Report changes of the window as events."""

    def __init__(self, qpn: int, interval_ns: int, note: Note) -> None:
        self._qpn = qpn
        self._interval_ns = interval_ns
        self._note = note
        self._last_ns = -1 << 62
        self.cwnd_bytes = -1

    def note(self, now_ns: int, congestion: CongestionControl) -> None:
        """Emit an event if the interval has passed since the last event. The first call emits no event."""
        if now_ns - self._last_ns < self._interval_ns:
            return
        if self.cwnd_bytes >= 0:
            self._note(WindowChanged, (now_ns, self._qpn, congestion.cwnd_bytes, congestion.inflight_bytes))
            self._last_ns = now_ns
        self.cwnd_bytes = congestion.cwnd_bytes
