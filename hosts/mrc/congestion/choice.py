"""The congestion control that an endpoint's options name."""

from __future__ import annotations

from hosts.mrc.config import MrcConfig
from hosts.mrc.congestion.control import CongestionControl, FixedWindow
from hosts.mrc.congestion.nscc import Nscc
from hosts.mrc.congestion.rate_cap import RateCap


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
