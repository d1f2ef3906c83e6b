"""Compute the depths of a port's queue, and the token bucket with which live targets limit a link's rate.

In the switch program the depth of a queue is a waiting time: the queued bytes, divided by the rate. The unit
here is the plane's bandwidth-delay product (UEC 1.0 section 3.6.17), which includes the delay of software
hosts and switches. From a depth of 0.2 on, a frame may be marked; from 0.8 on, every frame is marked. From a
depth of 1 on (on the last hop 1.5), frames are trimmed; from 2 on, frames are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from mrclab.p4src.contract import (
    BYTE_TIME_ONE,
    QUEUE_MIN_FRAMES,
    QUEUE_TRIM_LAST_HOP,
    TICKS_PER_US,
    TRIMMED_DSCP,
    TRIMMED_LAST_HOP_DSCP,
)
from mrclab.topologies import LinkProfile

ETHERNET_HEADER = 14
BURST_NS = 100_000
QUEUE_NS = 2_000_000
MIN_QUEUE_FRAMES = 32
_TOP = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Shape:
    """A token bucket: its rate, the bytes that may pass at once, and the bytes that may wait."""

    rate_bps: int
    burst_bytes: int
    limit_bytes: int


def shape_of(profile: LinkProfile) -> Shape:
    """Return the token bucket that limits a link's rate at each of its ends.

    The burst is the data that the link carries in 100 us, but at least two frames. The kernel wakes up late:
    with a smaller burst the link would not reach its rate. With a larger burst the frames would follow each
    other less evenly than on a wire. The queue holds the data of 2 ms, but at least 32 frames.
    """
    frame = profile.mtu_bytes + ETHERNET_HEADER
    per_second = profile.rate_bps // 8
    return Shape(
        profile.rate_bps,
        max(2 * frame, per_second * BURST_NS // 10**9),
        max(MIN_QUEUE_FRAMES * frame, per_second * QUEUE_NS // 10**9),
    )


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """The queue depths at which frames are marked, trimmed and dropped.

    Depths are fractions of a plane's bandwidth-delay product.
    """

    base_rtt_us: float = 1000
    """The time that hosts and switches add to a round trip, without the link's propagation delay."""
    whole: bool = False
    """True if `base_rtt_us` is the whole round trip, with the propagation delay of all links."""
    min_frames: int = QUEUE_MIN_FRAMES
    """The bandwidth-delay product counts as at least this number of frames, so that no queue is too short."""
    mark_from: float = 0.2
    mark_to: float = 0.8
    trim: float = 1.0
    trim_last_hop: float = QUEUE_TRIM_LAST_HOP
    drop: float = 2.0
    trims: float = 0.5
    """The depth beyond which trimmed frames are dropped: a wait, computed with half of the link's rate."""

    @classmethod
    def of_rtt(cls, rtt_ns: int) -> QueuePolicy:
        """Return the queue depths for a fabric with this round-trip time."""
        return cls(base_rtt_us=rtt_ns / 1000, whole=True)


@dataclass(frozen=True, slots=True)
class QueueSetting:
    """The parameters of one port, as in p4src/queue.p4 and p4src/ecn.p4.

    ``mark`` has two numbers of ticks. If a frame waits longer than the first number, the frame may be marked.
    If the frame waits longer than the sum of both numbers, the frame is always marked.
    """

    byte_time: int
    limit: int
    trim_from: int
    trim_limit: int
    trim_dscp: int
    mark: tuple[int, int] | None


def byte_time(rate_bps: int) -> int:
    """Return the time in which a link sends a byte, in units of 1/65,536 of a tick (`TICKS_PER_US`)."""
    return min(round(8 * 10**6 * TICKS_PER_US * BYTE_TIME_ONE / rate_bps), _TOP)


def bytes_of(ticks: int, rate_bps: int) -> int:
    """Return the number of bytes that a link with this rate carries in a number of ticks."""
    return round(ticks * rate_bps / (8 * 10**6 * TICKS_PER_US))


def queue_setting(profile: LinkProfile, *, last_hop: bool, policy: QueuePolicy | None = None) -> QueueSetting:
    """Return the settings of a link's port. ``last_hop`` is True if a NIC is at the other end."""
    p = policy or QueuePolicy()
    frame_us = (profile.mtu_bytes + ETHERNET_HEADER) * 8 * 10**6 / profile.rate_bps
    own_us = 0 if p.whole else 2 * profile.delay_ns / 1000
    product = max(p.base_rtt_us + own_us, p.min_frames * frame_us) * TICKS_PER_US

    def depth(part: float) -> int:
        return min(round(part * product), _TOP)

    return QueueSetting(
        byte_time=byte_time(profile.rate_bps),
        limit=depth(p.drop),
        trim_from=depth(p.trim_last_hop if last_hop else p.trim),
        trim_limit=depth(p.trims),
        trim_dscp=TRIMMED_LAST_HOP_DSCP if last_hop else TRIMMED_DSCP,
        # No marks on the last hop, because its queue does not depend on the path.
        mark=None if last_hop else (depth(p.mark_from), depth(p.mark_to) - depth(p.mark_from)),
    )
