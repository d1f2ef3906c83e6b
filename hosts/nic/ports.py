"""A NIC's ports as AF_PACKET sockets: whole Ethernet frames in and out, no kernel protocol in between."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import socket
import struct
import termios
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

ETH_P_IPV6 = 0x86DD
MAC_BYTES = 6
SO_RCVBUFFORCE = 33
SOL_PACKET = 263
PACKET_STATISTICS = 6
RECEIVE_BUFFER_BYTES = 16 << 20
# Less than a port's qdisc holds, so that a full link is seen as "not free" here and never as a drop there.
SEND_BUFFER_BYTES = 256 << 10
SEND_BUFFER_NS = 2_000_000
MAX_FRAME_BYTES = 9216
LEAST_SEND_BUFFER_BYTES = 12 * MAX_FRAME_BYTES


def send_buffer_bytes(rate_bps: int) -> int:
    """How much may wait in the kernel for a link of that rate: 2 ms of it, some frames at least.

    The kernel doubles it, and counts a full frame twice: on slow links two dozen of them may wait. What waits
    there is on its way: a NIC does not choose the path of a packet, or send one again, any sooner than it
    can put it on the wire.
    """
    wanted = rate_bps * SEND_BUFFER_NS // (8 * 10**9)
    return min(SEND_BUFFER_BYTES, max(LEAST_SEND_BUFFER_BYTES, wanted))


@dataclass(slots=True)
class PortCounters:
    """What was sent over a port since it was opened."""

    tx_frames: int = 0
    tx_refused: int = 0


class TransmitPort:
    """The sending half of a NIC port: an AF_PACKET socket bound to an interface, never blocking."""

    def __init__(self, plane: int, ifname: str, buffer_bytes: int = SEND_BUFFER_BYTES) -> None:
        self.plane = plane
        self.ifname = ifname
        self.counters = PortCounters()
        # Protocol 0 receives nothing.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        self._socket.bind((ifname, 0))

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def send(self, frame: bytes) -> bool:
        """Sends a frame. False means that the link is busy: try again when the port is writable."""
        try:
            self._socket.send(frame)
        except BlockingIOError:
            return False
        except OSError as error:
            # A full qdisc and an interface that is down both refuse the frame: to the protocol it is lost.
            if error.errno not in (errno.ENOBUFS, errno.ENETDOWN, errno.ENXIO):
                raise
            self.counters.tx_refused += 1
            return True
        self.counters.tx_frames += 1
        return True


class Receiver:
    """The receiving half of all ports of a NIC: one socket for the whole namespace, IPv6 frames only.

    One socket keeps frames of different planes in the order in which they came in. With one for each, a NIC
    that was not scheduled for a moment would read the newest of one plane before the oldest of another, and
    the sender would take the rest for lost.
    """

    def __init__(self, macs: Mapping[bytes, int]) -> None:
        self._planes = dict(macs)
        self._frame = memoryview(bytearray(MAX_FRAME_BYTES))
        self._pending = array("i", [0])
        self._socket = socket.socket(
            socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.htons(ETH_P_IPV6)
        )
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)

    def fileno(self) -> int:
        """The socket's descriptor."""
        return self._socket.fileno()

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def waiting(self) -> bool:
        """Whether a frame waits to be read. Cheap, where a read that finds nothing raises an exception."""
        fcntl.ioctl(self._socket, termios.FIONREAD, self._pending)
        return self._pending[0] > 0

    def received(self, limit: int) -> Iterator[tuple[int, memoryview]]:
        """Up to ``limit`` frames that have come in, each with its plane and valid until the next is taken.

        The plane is that of the port whose MAC address the T0 sent the frame to; other frames are left out.
        """
        for _ in range(limit):
            found = self.next_frame()
            if found is None:
                return
            plane = self._planes.get(bytes(found[:MAC_BYTES]))
            if plane is not None:
                yield plane, found

    def hand_over(
        self, limit: int, take: Callable[[int, memoryview, int], None], clock: Callable[[], int]
    ) -> None:
        """As `received`, but calls ``take(plane, frame, now_ns)`` for each: a packet's way has no detours.

        Each is stamped when it is read: one that came in while others were taken in would seem to have come
        before them, after a round trip that was never so short.
        """
        planes = self._planes
        for _ in range(limit):
            found = self.next_frame()
            if found is None:
                return
            plane = planes.get(bytes(found[:MAC_BYTES]))
            if plane is not None:
                take(plane, found, clock())

    def next_frame(self) -> memoryview | None:
        """The frame that came in next, whomever it is for; valid until the next is taken. None: no more."""
        try:
            size: int = self._socket.recv_into(self._frame)
        except (BlockingIOError, InterruptedError):
            return None
        return self._frame[:size]

    def drops(self) -> int:
        """Frames the kernel dropped since the last call because this socket was not read fast enough."""
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        return int(struct.unpack("II", statistics)[1])


PR_SET_TIMERSLACK = 29


def sharpen_timers(slack_ns: int = 1_000) -> None:
    """Lets this thread's waits end within ``slack_ns`` of their time, where Linux may add 50 us."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)
