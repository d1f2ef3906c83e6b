"""A NIC's ports as AF_PACKET sockets, and a delay line that emulates a long wire.

Ports send and receive whole Ethernet frames, without a protocol of the kernel. A ``DelayLine`` delays all
received frames by the same time, in order. So a kernel without netem can emulate a network whose
bandwidth-delay product is many packets.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import socket
import struct
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ETH_P_IPV6 = 0x86DD
MAC_BYTES = 6
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_STATISTICS = 6
RECEIVE_BUFFER_BYTES = 16 << 20
# The send buffer is smaller than a port's qdisc. So on a full link the socket blocks, and the qdisc drops
# nothing.
SEND_BUFFER_BYTES = 256 << 10
SEND_BUFFER_NS = 2_000_000
MAX_FRAME_BYTES = 9216
LEAST_SEND_BUFFER_BYTES = 12 * MAX_FRAME_BYTES


def send_buffer_bytes(rate_bps: int) -> int:
    """Return how many bytes may wait in the kernel for a link: as many as it sends in 2 ms, within limits.

    On slow links about 24 frames may wait. The buffer is short because waiting frames cannot be changed. The
    path of a packet should be chosen as late as possible, and a packet should only be retransmitted when the
    link is free.
    """
    wanted = rate_bps * SEND_BUFFER_NS // (8 * 10**9)
    return min(SEND_BUFFER_BYTES, max(LEAST_SEND_BUFFER_BYTES, wanted))


@dataclass(slots=True)
class PortCounters:
    """Numbers of frames since the port was opened: sent frames, and frames that the kernel refused."""

    tx_frames: int = 0
    tx_refused: int = 0


class TransmitPort:
    """The sending half of a NIC port: a non-blocking AF_PACKET socket bound to an interface."""

    def __init__(self, plane: int, ifname: str, buffer_bytes: int = SEND_BUFFER_BYTES) -> None:
        self.plane = plane
        self.ifname = ifname
        self.counters = PortCounters()
        # Protocol 0: this socket receives nothing.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self._socket.bind((ifname, 0))

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def send(self, frame: bytes) -> bool:
        """Send a frame. Return False if the link is busy; then send it again when the port is writable."""
        try:
            self._socket.send(frame)
        except BlockingIOError:
            return False
        except OSError as error:
            # The qdisc is full or the interface is down. For the protocol, the frame is lost.
            if error.errno not in (errno.ENOBUFS, errno.ENETDOWN, errno.ENXIO):
                raise
            self.counters.tx_refused += 1
            return True
        self.counters.tx_frames += 1
        return True


class Receiver:
    """The receiving half of all ports of a NIC: one socket for the whole namespace, IPv6 frames only.

    One socket keeps the frames of all planes in their order of arrival. With one socket per plane, a process
    that ran late would read the newest frame of one plane before older frames of another plane. The sender
    would then count packets as lost.
    """

    def __init__(self, macs: Mapping[bytes, int]) -> None:
        import fcntl  # Only Unix has fcntl and termios.
        import termios

        self._ioctl: Callable[[socket.socket, int, array[int]], Any] = fcntl.ioctl
        self._bytes_waiting = termios.FIONREAD
        self._planes = dict(macs)
        self._frame = memoryview(bytearray(MAX_FRAME_BYTES))
        self._pending = array("i", [0])
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(ETH_P_IPV6)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def waiting(self) -> bool:
        """Return True if a frame has arrived. This call is faster than a read that finds no frame."""
        self._ioctl(self._socket, self._bytes_waiting, self._pending)
        return self._pending[0] > 0

    def received(self, limit: int) -> Iterator[tuple[int, memoryview]]:
        """Yield up to ``limit`` arrived frames with their planes.

        A frame is valid until the next frame is yielded. The destination MAC address determines the plane.
        Frames to other addresses are skipped.
        """
        for _ in range(limit):
            found = self.next_frame()
            if found is None:
                return
            plane = self._planes.get(bytes(found[:MAC_BYTES]))
            if plane is not None:
                yield plane, found

    def hand_over(
        self,
        limit: int,
        take: Callable[[int, memoryview, int], None],
        clock: Callable[[], int],
        enough: Callable[[], bool] = lambda: False,
    ) -> None:
        """Call ``take(plane, frame, now_ns)`` for each frame. This is a faster form of `received`.

        Stop after a frame if ``enough()`` returns True, because the caller must then send first.

        Each frame gets the time at which it is read. If all frames had the time of the first frame, the RTTs
        of later frames would be too short.
        """
        planes = self._planes
        for _ in range(limit):
            found = self.next_frame()
            if found is None:
                return
            plane = planes.get(bytes(found[:MAC_BYTES]))
            if plane is not None:
                take(plane, found, clock())
                if enough():
                    return

    def next_frame(self) -> memoryview | None:
        """Return the next frame, whatever its address, or None. The frame is valid until the next call."""
        try:
            size: int = self._socket.recv_into(self._frame)
        except (BlockingIOError, InterruptedError):
            return None
        return self._frame[:size]

    def drops(self) -> int:
        """Return how many frames the kernel dropped since the last call because the socket was full."""
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        return int(struct.unpack("II", statistics)[1])


PR_SET_TIMERSLACK = 29


def sharpen_timers(slack_ns: int = 1_000) -> None:
    """Limit the delay of this thread's timers to ``slack_ns``; Linux's default is 50 us."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)


Frame = tuple[int, memoryview]
"""The plane on which a frame arrived, and its bytes."""


class DelayLine:
    """A queue that delays all frames by the same time. Times are in ns, from the caller's clock."""

    def __init__(self, delay_ns: int) -> None:
        if delay_ns < 0:
            raise ValueError(f"a delay must not be negative: {delay_ns} ns")
        self._delay_ns = delay_ns
        self._frames: deque[tuple[int, int, bytes]] = deque()

    def put(self, frames: Iterable[Frame], now_ns: int) -> None:
        """Add copies of frames that arrived at ``now_ns``."""
        due_ns = now_ns + self._delay_ns
        self._frames.extend((due_ns, plane, bytes(frame)) for plane, frame in frames)

    def next_ns(self) -> int | None:
        """Return when the next frame is due; None if no frame waits."""
        return self._frames[0][0] if self._frames else None

    def arrived(self, now_ns: int) -> Iterator[Frame]:
        """Remove and yield the frames that are due."""
        frames = self._frames
        while frames and frames[0][0] <= now_ns:
            _, plane, frame = frames.popleft()
            yield plane, memoryview(frame)
