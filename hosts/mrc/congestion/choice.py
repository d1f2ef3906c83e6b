"""The congestion control that an endpoint's options name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.congestion.control import CongestionControl, FixedWindow
from mrclab.hosts.mrc.congestion.nscc import Nscc
from mrclab.hosts.mrc.congestion.rate_cap import RateCap
from mrclab.hosts.mrc.wire import METH_LEN, TSETH_LEN
from mrclab.hosts.rdma.headers import BTH_LEN, ICRC_LEN, RETH_LEN, UDP_LEN

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
