"""Watching interfaces: rtnetlink notifications (rtnetlink(7)) of one network namespace.

Netlink messages are read here by hand. pyroute2 would take 0.4 s to import and some 2 ms a message, in a
packet loop (``CarrierWatch``) and in a switch server that a fabric waits for (``LinkMonitor``).
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping

_NEWLINK, _DELLINK, _GETLINK = 16, 17, 18
_GROUP_LINK, _GROUP_TC = 1, 8
_TC = range(36, 47)  # queues, their classes and filters, new or deleted
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
    """All interfaces of a namespace, by index: a socket that is readable when the link of one changes.

    The first messages, requested at the start, report all interfaces as they are.
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
        """Return the messages since the last call: (ifindex, true if it has its link). Do not wait."""
        while True:
            try:
                data = self._socket.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError as exc:
                if exc.errno != errno.ENOBUFS:
                    raise
                self._request_all()  # some were lost: start again
                continue
            yield from _links(data)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


UP, DOWN, NO_CARRIER, MISSING = "up", "down", "no carrier", "missing"


def link_states(ifnames: Iterable[str]) -> dict[str, str]:
    """Return UP, DOWN (taken down itself), NO_CARRIER or MISSING for interfaces of the caller's namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ioctls:
        return {ifname: _state(ioctls, ifname) for ifname in ifnames}


def _state(ioctls: socket.socket, ifname: str) -> str:
    import fcntl  # Unix has it alone

    try:
        answer = fcntl.ioctl(ioctls, _SIOCGIFFLAGS, _IFREQ.pack(ifname.encode(), 0))
    except OSError:
        return MISSING
    flags: int = _IFREQ.unpack(answer)[1]
    if not flags & _IFF_UP:
        return DOWN
    return UP if flags & _IFF_RUNNING else NO_CARRIER


def _messages(data: bytes) -> Iterator[tuple[int, int]]:
    """Return the kind of each message, and where its content begins."""
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
    """The queues, filters and links of a namespace's interfaces, from now on; made in a thread that is in it.

    The kernel keeps the messages until they are read, so a change costs nothing while packets are timed.
    """

    def __init__(self) -> None:
        self._news = _link_news(_GROUP_LINK | _GROUP_TC)
        self._names = dict(socket.if_nameindex())

    def changes(self) -> list[str]:
        """Return the changes since the last call in words, each once. Do not wait."""
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

    Netlink only says that something changed; the state now is read with an ioctl, so that a message lost to
    a full socket costs nothing but the next one's delay.
    """

    def __init__(self, ifnames: Mapping[int, str]) -> None:
        self._ifnames = dict(ifnames)
        self._news = _link_news()
        self._ioctls = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._up = dict.fromkeys(self._ifnames, True)

    def fileno(self) -> int:
        """Return a descriptor that is readable when something may have changed."""
        return self._news.fileno()

    def close(self) -> None:
        """Close the sockets."""
        self._news.close()
        self._ioctls.close()

    def changes(self) -> dict[int, bool]:
        """Return the planes whose port went up or down since the last call; at first all are up."""
        while True:
            try:
                self._news.recv(_MESSAGE_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:  # messages were lost: the state is read below
                    raise
        now = {plane: self._running(ifname) for plane, ifname in self._ifnames.items()}
        changed = {plane: up for plane, up in now.items() if up != self._up[plane]}
        self._up = now
        return changed

    def _running(self, ifname: str) -> bool:
        return _state(self._ioctls, ifname) == UP
