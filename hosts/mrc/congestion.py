"""Congestion control: how much may be in flight. A seam, and the plainest thing that fits it.

The requester asks one question per packet, whether `inflight < cwnd_bytes`, and so reads `cwnd_bytes` as a
plain attribute. Everything else is called once per SACK or NACK, never per packet.
"""

from __future__ import annotations

from typing import Protocol


class CongestionControl(Protocol):
    """What the requester tells and asks a congestion controller."""

    cwnd_bytes: int
    """Payload bytes that may be in flight."""

    def on_ack(
        self, now_ns: int, acked_bytes: int, inflight_bytes: int, rtt_ns: int | None, ecn: bool
    ) -> None:
        """A SACK acknowledged `acked_bytes`; `rtt_ns` is None where the sample would be ambiguous."""

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """A switch trimmed a packet."""

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Packets were inferred lost."""

    def on_receiver(self, now_ns: int, penalty: int, restore: bool, rcvd_units: int) -> None:
        """CC_STATE of a SACK: the receiver's wish to narrow the window, and what it has received."""


class FixedWindow:
    """A window that never changes: no congestion control beyond spraying and skipping."""

    def __init__(self, cwnd_bytes: int) -> None:
        self.cwnd_bytes = cwnd_bytes

    def on_ack(
        self, now_ns: int, acked_bytes: int, inflight_bytes: int, rtt_ns: int | None, ecn: bool
    ) -> None:
        """Change nothing."""

    def on_trim(self, now_ns: int, lost_bytes: int, last_hop: bool) -> None:
        """Change nothing."""

    def on_loss(self, now_ns: int, lost_bytes: int) -> None:
        """Change nothing."""

    def on_receiver(self, now_ns: int, penalty: int, restore: bool, rcvd_units: int) -> None:
        """Change nothing."""
