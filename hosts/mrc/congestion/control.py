"""Congestion control: how much may be sent now. The interface, and the plainest control that fits it.

A requester reads its `budget_bytes` once per burst and reports the used bytes afterwards; everything else is
reported once per SACK or NACK. Nothing here is called per packet.

A controller belongs to a destination and may govern several queue pairs (a "QPCC" [API]); all sizes passed to
it are payload plus its own `overhead_bytes` per packet.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import mypyc_attr

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
