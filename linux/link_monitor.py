"""Watch interfaces by the rtnetlink notifications (rtnetlink(7)) of one network namespace.

This module parses netlink messages itself. pyroute2 needs 0.4 s for its import and about 2 ms per message.
That is too long in a packet loop (``CarrierWatch``) and at the start of a switch (``LinkMonitor``).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping

_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_GROUP_LINK, _GROUP_TC = 1, 8
_TC = range(36, 47)  # queues, their classes and their filters: made or deleted
_REQUEST, _DUMP = 1, 0x300
_IFF_UP, _IFF_RUNNING = 1, 0x40
_SIOCGIFFLAGS = 0x8913
_IFREQ = struct.Struct("16sH14x")
_MESSAGE_BYTES = 1 << 16


def _link_news(groups: int = _GROUP_LINK) -> socket.socket:
    """Return a socket that becomes readable when a link of this namespace changes."""
    news = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
    news.bind((0, groups))
    return news


class LinkMonitor:
    """The links of all interfaces of a namespace, by index. Its descriptor is readable when a link changes.

    The object requests all states at the start, so the first messages report all interfaces.
    """

    def __init__(self) -> None:
        self._socket = _link_news()
        self._request_all()

    def _request_all(self) -> None:
        body = struct.pack("=BxHiII", 0, 0, 0, 0, 0)
        head = struct.pack("=IHHII", 16 + len(body), _GETLINK, _REQUEST | _DUMP, 1, 0)
        self._socket.send(head + body)

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._socket.fileno()

    def changes(self) -> Iterator[tuple[int, bool]]:
        """Return the changes since the last call, as (ifindex, True if the link is up). Do not wait."""
        while True:
            try:
                data = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                self._request_all()  # messages were lost, so the state of all interfaces is requested again
                continue
            yield from _links(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


UP, DOWN, NO_CARRIER, MISSING = "up", "down", "no carrier", "missing"


def link_states(ifnames: Iterable[str]) -> dict[str, str]:
    """Return UP, DOWN (switched off), NO_CARRIER or MISSING for each interface of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ioctls:
        return {ifname: _state(ioctls, ifname) for ifname in ifnames}


def _state(ioctls: socket.socket, ifname: str) -> str:
    import fcntl  # only Unix has this module

    try:
        answer = fcntl.ioctl(ioctls, _SIOCGIFFLAGS, _IFREQ.pack(ifname.encode(), 0))
    except OSError:
        return MISSING
    flags: int = _IFREQ.unpack(answer)[1]
    if not flags & _IFF_UP:
        return DOWN
    return UP if flags & _IFF_RUNNING else NO_CARRIER


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Return the type of each message, and the offset of its content."""
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from("=IH", data, at)
        if size < 16:
            return
        yield kind, at + 16
        at += size + 3 & ~3


def _links(data: bytes) -> Iterator[tuple[int, bool]]:
    for kind, at in _messages(data):
        if kind in (_NEWLINK, _DELLINK):
            index, flags = struct.unpack_from("=iI", data, at + 4)
            yield index, kind == _NEWLINK and flags & _IFF_UP != 0 and flags & _IFF_RUNNING != 0


class ChangeWatch:
    """Record changes of queues, filters and links in the namespace in which the object is made.

    The kernel keeps the messages until they are read. So the recording needs no CPU time in a measurement.
    """

    def __init__(self) -> None:
        self._news = _link_news(_GROUP_LINK | _GROUP_TC)
        self._names = dict(socket.if_nameindex())

    def changes(self) -> list[str]:
        """Describe the changes since the last call in words, each change once. Do not wait."""
        found: dict[str, None] = {}
        while True:
            try:
                data = self._news.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return list(found)
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                found["the queues of many interfaces changed"] = None
                continue
            for index in _queues(data):
                found[f"the queues or filters of {self._names.get(index, index)} changed"] = None
            for index, up in _links(data):
                if not up:
                    found[f"{self._names.get(index, index)} was taken down"] = None

    def close(self) -> None:
        """Close the socket."""
        self._news.close()


def _queues(data: bytes) -> Iterator[int]:
    for kind, at in _messages(data):
        if kind in _TC:
            yield struct.unpack_from("=i", data, at + 4)[0]


class CarrierWatch:
    """The ports of a NIC, by plane, in the namespace of the calling thread.

    A netlink message only triggers a check; an ioctl reads the present state. So if a message is lost because
    the socket is full, the change is found when the next message arrives.
    """

    def __init__(self, ifnames: Mapping[int, str]) -> None:
        self._ifnames = dict(ifnames)
        self._news = _link_news()
        self._ioctls = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._up = dict.fromkeys(self._ifnames, True)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a port may have changed."""
        return self._news.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._news.close()
        self._ioctls.close()

    def changes(self) -> dict[int, bool]:
        """Return the planes whose port went up or down since the last call.

        The first call returns the planes whose port is down.
        """
        while True:
            try:
                self._news.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # messages were lost, but the state is read below
                    raise
        now = {plane: self._running(ifname) for plane, ifname in self._ifnames.items()}
        changed = {plane: up for plane, up in now.items() if up != self._up[plane]}
        self._up = now
        return changed

    def _running(self, ifname: str) -> bool:
        return _state(self._ioctls, ifname) == UP
