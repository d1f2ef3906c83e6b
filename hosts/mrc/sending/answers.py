"""Read an RTT sample, or the result of a write, from an answer.

An answer gives an RTT sample if it is clear which transmission of the packet was answered. An AETH
acknowledges a write, or names the error of a failed write [SPEC §6.2.2, IBTA 9.7.5.2].
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
    """Return the RTT, ns, of the packet in flight that a SACK answers; None if it is ambiguous."""
    if packet.previous is not None and timestamps:
        return by_stamp(now_ns, packet, sack.tx_timestamp)
    rtt_ns = by_entropy(now_ns, packet, sack.entropy)
    if rtt_ns is not None and packet.previous is None and service_time:
        rtt_ns = without_hold(rtt_ns, packet.sent_ns, sack.tx_timestamp)
    return rtt_ns


def rtt_of_nack(now_ns: int, packet: SentPacket, nack: Nack, *, timestamps: bool) -> int | None:
    """Return the RTT, ns, of the packet in flight that a NACK refuses; None if it is ambiguous."""
    if packet.previous is not None and timestamps:
        return by_stamp(now_ns, packet, nack.tx_timestamp)
    return by_entropy(now_ns, packet, nack.entropy)


def by_stamp(now_ns: int, packet: SentPacket, stamp: int) -> int | None:
    """If one of the last two transmissions has this timestamp, return its RTT, ns; else None."""
    previous = packet.previous
    if timestamp(packet.sent_ns) == stamp:
        return now_ns - packet.sent_ns
    if previous is not None and timestamp(previous.sent_ns) == stamp:
        return now_ns - previous.sent_ns
    return None


def by_entropy(now_ns: int, packet: SentPacket, entropy: int) -> int | None:
    """Return the RTT of a packet without timestamp, ns; None if it is ambiguous.

    A packet that was sent once gives a sample. A packet that was sent twice gives a sample if the answer is
    for the retransmission [UEC §3.6.13.1]. UEC marks such answers with a flag, but MRC's SACK has no flag. If
    the retransmission used another EV, the EV in the answer shows which transmission arrived.
    """
    previous = packet.previous
    if previous is not None and (
        packet.tries > 1 or entropy != packet.ev.value or entropy == previous.ev.value
    ):
        return None
    return now_ns - packet.sent_ns


_INVALID_REQUEST: Final = 0x61


def is_ack(syndrome: int) -> bool:
    """Return whether a syndrome is a positive acknowledgement. Its credit field is ignored."""
    return syndrome >> 5 & 3 == 0


def nak_status(syndrome: int) -> Status | None:
    """Return the status of a write whose answer has this syndrome; None if the syndrome is no NAK.

    MRC has no NAK that asks to wait or to repeat, so every NAK is final.
    """
    if syndrome >> 5 & 3 != 3:
        return None
    if syndrome == _INVALID_REQUEST:
        return Status.REMOTE_INVALID_REQUEST_ERROR
    return Status.REMOTE_OPERATION_ERROR
