"""What an answer tells the sender: an RTT sample, and whether a write was accepted or how it failed.

An answer gives an RTT sample if it names the transmission of the packet that it answers. An AETH says
acknowledged, or how a write failed [SPEC §6.2.2, IBTA 9.7.5.2].
"""

from __future__ import annotations

from typing import Final

from mrclab.hosts.mrc.outstanding import SentPacket
from mrclab.hosts.mrc.packets import SackPacket
from mrclab.hosts.mrc.wire import Nack, timestamp, without_hold
from mrclab.hosts.rdma.events import Status


def rtt_of(
    now_ns: int, packet: SentPacket, sack: SackPacket, *, timestamps: bool, service_time: bool
) -> int | None:
    """Return the RTT, ns, of the packet in flight that a SACK answers; None if that would be ambiguous."""
    if packet.previous is not None and timestamps:
        return by_stamp(now_ns, packet, sack.tx_timestamp)
    rtt_ns = by_entropy(now_ns, packet, sack.entropy)
    if rtt_ns is not None and packet.previous is None and service_time:
        rtt_ns = without_hold(rtt_ns, packet.sent_ns, sack.tx_timestamp)
    return rtt_ns


def rtt_of_nack(now_ns: int, packet: SentPacket, nack: Nack, *, timestamps: bool) -> int | None:
    """Return the RTT, ns, of the packet in flight that a NACK refuses; None if that would be ambiguous."""
    if packet.previous is not None and timestamps:
        return by_stamp(now_ns, packet, nack.tx_timestamp)
    return by_entropy(now_ns, packet, nack.entropy)


def by_stamp(now_ns: int, packet: SentPacket, stamp: int) -> int | None:
    """Return the RTT of the transmission whose timestamp was echoed, ns; None if it is neither of two."""
    previous = packet.previous
    if timestamp(packet.sent_ns) == stamp:
        return now_ns - packet.sent_ns
    if previous is not None and timestamp(previous.sent_ns) == stamp:
        return now_ns - previous.sent_ns
    return None


def by_entropy(now_ns: int, packet: SentPacket, entropy: int) -> int | None:
    """Return the RTT of a packet that carried no timestamp, ns, or None if it would be ambiguous.

    A packet sent once gives a sample, and one sent twice if the answer is for its retransmission [UEC
    §3.6.13.1]. SACKs of MRC do not have UEC's retransmission flag; if the EV changed, the echoed EV replaces
    the flag.
    """
    previous = packet.previous
    if previous is not None and (
        packet.tries > 1 or entropy != packet.ev.value or entropy == previous.ev.value
    ):
        return None
    return now_ns - packet.sent_ns


_INVALID_REQUEST: Final = 0x61


def is_ack(syndrome: int) -> bool:
    """Return whether a syndrome acknowledges; its credits do not matter."""
    return syndrome >> 5 & 3 == 0


def nak_status(syndrome: int) -> Status | None:
    """Return how a write ends that is answered with this syndrome; None if it is no NAK.

    MRC has no NAK that requests a wait or a repetition, so every NAK is final.
    """
    if syndrome >> 5 & 3 != 3:
        return None
    if syndrome == _INVALID_REQUEST:
        return Status.REMOTE_INVALID_REQUEST_ERROR
    return Status.REMOTE_OPERATION_ERROR
