"""AIMD: add one packet per RTT to the window; halve the window on congestion. TCP Reno does so [RFC 5681].

The window is halved at most once per RTT, because marks and losses within one RTT have the same cause.
"""

from __future__ import annotations

from mrclab.hosts.mrc.config import MrcConfig
from mrclab.hosts.mrc.congestion import CongestionControl

INITIAL_PACKETS = 16
GUESSED_RTT_NS = 1_000_000
"""The RTT before the first measurement, ns."""


class Aimd(CongestionControl):
    """Additive increase, multiplicative decrease: one window for each queue pair."""

    def __init__(self, config: MrcConfig) -> None:
        super().__init__(INITIAL_PACKETS * config.mtu_bytes)
        self._mtu_bytes = config.mtu_bytes
        self._rtt_ns = GUESSED_RTT_NS
        self._halved_ns = -1 << 62

    def on_ack(self, now_ns: int, acked_bytes: int, rtt_ns: int | None, ecn: bool) -> None:
        """Increase the window by one packet per RTT, or halve the window if the SACK has a mark."""
        super().on_ack(now_ns, acked_bytes, rtt_ns, ecn)
        if rtt_ns is not None:
            self._rtt_ns = rtt_ns
        if ecn:
            self._halve(now_ns)
        else:
            self.cwnd_bytes += self._mtu_bytes * acked_bytes // self.cwnd_bytes

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Treat a trim as congestion."""
        super().on_trim(now_ns, lost_bytes, last_hop)
        self._halve(now_ns)

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Treat a loss as congestion, as TCP does. In MRC a loss usually means a broken path."""
        super().on_loss(now_ns, lost_bytes)
        self._halve(now_ns)

    def _halve(self, now_ns: int) -> None:
        if now_ns - self._halved_ns >= self._rtt_ns:
            self._halved_ns = now_ns
            self.cwnd_bytes = max(self._mtu_bytes, self.cwnd_bytes // 2)
