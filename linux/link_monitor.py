"""Which interfaces have their link: rtnetlink notifications (rtnetlink(7)) of one network namespace."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator

_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_GROUP_LINK = 1
_REQUEST, _DUMP = 1, 0x300
_IFF_UP, _IFF_RUNNING = 1, 0x40


class LinkMonitor:
    """A socket that becomes readable when the link of some interface changes.

    The first messages, asked for at the start, tell of all interfaces as they are.
    """

    def __init__(self) -> None:
        self._socket = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._socket.bind((0, _GROUP_LINK))
        self._ask()

    def _ask(self) -> None:
        body = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        head = struct.pack("=IHHII", 16 + len(body), _GETLINK, _REQUEST | _DUMP, 1, 0)
        self._socket.send(head + body)

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._socket.fileno()

    def changes(self) -> Iterator[tuple[int, bool]]:
        """What has been told since the last call: (ifindex, whether it has its link). Does not wait."""
        while True:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                self._ask()  # some were lost: begin anew
                continue
            yield from _links(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def _links(data: bytes) -> Iterator[tuple[int, bool]]:
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if size < 16:
            return
        if kind in (_NEWLINK, _DELLINK):
            index, flags = struct.unpack_from("=iI", data, at + 20)
            yield index, kind == _NEWLINK and flags & _IFF_UP != 0 and flags & _IFF_RUNNING != 0
        at += size + 3 & ~3
