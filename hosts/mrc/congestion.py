"""Congestion control: how much may be sent now. The interface, simple controls, and the choice.

A requester reads a control's `budget_bytes` once per burst and reports the used bytes afterwards; everything
else is reported once per SACK or NACK. Nothing here is called per packet.

A controller belongs to a destination and may govern several queue pairs (a "QPCC" [API]); all sizes passed to
it are payload plus its own `overhead_bytes` per packet.

Here are a fixed window, a cap on the rate in front of any control, and events that say how large the window
is, not more often than asked for; `mrclab.hosts.mrc.nscc` has NSCC.
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
    """The methods that a requester calls. By itself a window that never changes.

    Derive from it to try your own control, and pass that to `Endpoint`; it need not be compiled.
    """

    shared = False
    """One controller governs all queue pairs to a destination, rather than one each."""
    paced = False
    """Time alone can make the budget positive; `next_send_ns` says when."""
    overhead_bytes = 0
    """Bytes that a packet counts beyond its payload."""
    byte_ns = 0.0
    """Difference of the RTT of a shorter packet from that of a full one, ns for each missing byte."""
    reads_rcvd_bytes = False
    """`on_arrived` is to be called."""

    def __init__(self, cwnd_bytes: int) -> None:
        self.cwnd_bytes = cwnd_bytes
        """Bytes that may be in flight."""
        self.inflight_bytes = 0
        """Bytes in flight, over all queue pairs governed."""
        self.penalty = 0
        """rcv_cwnd_pen of the newest CC_STATE, 128ths: how much smaller the receiver wants the window."""
        self.restore = False
        """restore_cwnd of the newest CC_STATE: the window before the penalty may come back."""
        # A subclass that is not compiled may set these in its class body. The compiled core does not look
        # there, so each value is copied into the instance.
        self.shared = bool(self._declared("shared"))
        self.paced = bool(self._declared("paced"))
        self.overhead_bytes = int(self._declared("overhead_bytes"))
        self.byte_ns = float(self._declared("byte_ns"))
        self.reads_rcvd_bytes = bool(self._declared("reads_rcvd_bytes"))

    def _declared(self, name: str) -> Any:
        return getattr(self, name)

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
        """Take `acked_bytes` out of flight, by a SACK; `rtt_ns` is None if it would be ambiguous.

        `penalty` and `restore` are those of this SACK by then.
        """
        self.inflight_bytes -= acked_bytes

    def on_arrived(self, arrived_bytes: int) -> None:
        """Note the nominal bytes that arrived at the peer since its last report; `on_ack` follows."""

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Take the RTT, ns, that a NACK shows, before anything else is done about it."""

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Take a trimmed packet out of flight; at the last hop it means incast, else a congested path."""
        self.inflight_bytes -= lost_bytes

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Packets were inferred lost."""
        self.inflight_bytes -= lost_bytes

    def on_withdrawn(self, size: int) -> None:
        """Packets left flight for reasons that say nothing about congestion; negative: they are back."""
        self.inflight_bytes -= size

    def on_receiver(self, now_ns: int, penalty: int, restore: bool) -> None:
        """Note another rcv_cwnd_pen or restore_cwnd, for this SACK and the following ones."""
        self.penalty = penalty
        self.restore = restore

    def calibrate(self, base_rtt_ns: int) -> None:
        """Take the measured RTT of the idle network, for controls that infer queues from delay."""

    def set_rate_cap(self, rate_bps: int) -> None:
        """Set the cap, in bit/s. Raise ValueError on a control without one."""
        raise ValueError("there is no rate cap: the option rate_bps sets one")


class FixedWindow(CongestionControl):
    """A window that never changes, one for each queue pair: no control beyond spraying and skipping."""


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


NOMINAL_OVERHEAD_BYTES: Final = UDP_LEN + BTH_LEN + METH_LEN + RETH_LEN + ICRC_LEN + 40
"""UDP length + 40 [SPEC §8.3.1] less the payload, for a packet without TSETH. Immediate data and padding of a
message's last packet, 7 bytes at most, are left out."""


class NsccControl(CongestionControl):
    """`nscc.Nscc` as a controller: adds the account of the bytes in flight."""

    shared = True

    def __init__(self, nscc: Nscc, overhead_bytes: int = NOMINAL_OVERHEAD_BYTES) -> None:
        super().__init__(nscc.cwnd_bytes)
        self.nscc = nscc
        self.overhead_bytes = overhead_bytes
        self.byte_ns = nscc.config.byte_ns
        self.reads_rcvd_bytes = nscc.config.rcvd_bytes_clock
        self._arrived_bytes = 0

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Let the receiver and the quadrants decide."""
        self.inflight_bytes -= acked_bytes
        if self.reads_rcvd_bytes:
            acked_bytes = self._arrived_bytes
            self._arrived_bytes = 0
        self.nscc.on_ack(now_ns, acked_bytes, rtt_ns, ecn, self.inflight_bytes, self.penalty, self.restore)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_arrived(self, arrived_bytes: int) -> None:
        """Let this be the bytes of the SACK, rather than those of the packets that it acknowledges."""
        self._arrived_bytes += arrived_bytes

    def on_nack_rtt(self, rtt_ns: int) -> None:
        """Let it lower the base RTT, if the options say so."""
        self.nscc.on_nack_rtt(rtt_ns)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Lower the window, wherever the packet was trimmed; the EV is another matter."""
        self.inflight_bytes -= lost_bytes
        self.nscc.on_trim(now_ns, lost_bytes, self.inflight_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Lower the window by the lost bytes."""
        self.inflight_bytes -= lost_bytes
        self.nscc.on_inferred_loss(lost_bytes)
        self.cwnd_bytes = self.nscc.cwnd_bytes

    def calibrate(self, base_rtt_ns: int) -> None:
        """Compute delay from the measured value from now on."""
        self.nscc.calibrate(base_rtt_ns)
        self.cwnd_bytes = self.nscc.cwnd_bytes


def make_controller(
    config: MrcConfig, other: Callable[[MrcConfig], CongestionControl] | None = None
) -> CongestionControl:
    """Return the controller that `config.congestion` names, behind a rate cap where `config` has one.

    `other` makes one that the core does not have itself.
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
    """The window as it was reported last."""

    def __init__(self, qpn: int, interval_ns: int, note: Note) -> None:
        self._qpn = qpn
        self._interval_ns = interval_ns
        self._note = note
        self._last_ns = -1 << 62
        self.cwnd_bytes = -1

    def note(self, now_ns: int, congestion: CongestionControl) -> None:
        """Emit an event for a window that changed, at most once per interval; none for the first."""
        if now_ns - self._last_ns < self._interval_ns:
            return
        if self.cwnd_bytes >= 0:
            self._note(WindowChanged, (now_ns, self._qpn, congestion.cwnd_bytes, congestion.inflight_bytes))
            self._last_ns = now_ns
        self.cwnd_bytes = congestion.cwnd_bytes
