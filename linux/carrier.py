"""Which ports of the NIC have a link: told by the kernel the moment it changes.

Route netlink says that something changed (RTNLGRP_LINK); what it is now is read with an ioctl, so that a
message lost to a full socket costs nothing but the next one's delay.
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from collections.abc import Mapping

RTMGRP_LINK = 1
SIOCGIFFLAGS = 0x8913
IFF_UP, IFF_RUNNING = 0x1, 0x40
_IFREQ = struct.Struct("16sH14x")
_MESSAGE_BYTES = 1 << 16


class CarrierWatch:
    """The ports of a NIC, by plane; in the namespace of the calling thread."""

    def __init__(self, ifnames: Mapping[int, str]) -> None:
        self._ifnames = dict(ifnames)
        self._news = socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE
        )
        self._news.bind((0, RTMGRP_LINK))
        self._asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._up = dict.fromkeys(self._ifnames, True)

    def fileno(self) -> int:
        """A descriptor that is readable when something may have changed."""
        return self._news.fileno()

    def close(self) -> None:
        """Closes the sockets."""
        self._news.close()
        self._asking.close()

    def changes(self) -> dict[int, bool]:
        """The planes whose port went up or down since the last call; before the first one all were up."""
        while True:
            try:
                self._news.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # messages were lost: what they said is read below
                    raise
        now = {plane: self._running(ifname) for plane, ifname in self._ifnames.items()}
        changed = {plane: up for plane, up in now.items() if up != self._up[plane]}
        self._up = now
        return changed

    def _running(self, ifname: str) -> bool:
        try:
            answer = fcntl.ioctl(self._asking, SIOCGIFFLAGS, _IFREQ.pack(ifname.encode(), 0))
        except OSError:
            return False  # gone altogether
        flags: int = _IFREQ.unpack(answer)[1]
        return flags & (IFF_UP | IFF_RUNNING) == IFF_UP | IFF_RUNNING
