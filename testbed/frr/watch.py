"""When the routes of a routed fabric change: notifications of its routers' kernels."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

from pyroute2.netlink.rtnl import RTMGRP_IPV6_ROUTE

from mrclab.linux import namespaces


class RouteWatch:
    """A socket in every router's namespace that has something to read when a route there has changed.

    Notifications have no time stamp: read them when they come, with ``note``. ``close`` it at the end.
    """

    def __init__(self, places: Iterable[str]) -> None:
        """``places`` are the routers' namespaces."""
        self._sockets: list[socket.socket] = []
        self.changes_ns: list[int] = []
        """When routes changed, CLOCK_MONOTONIC."""
        try:
            for place in places:
                self._sockets.append(namespaces.in_thread(lambda place=place: _listen(place)))  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable."""
        return [s.fileno() for s in self._sockets]

    def note(self) -> None:
        """Read what has come."""
        for watcher in self._sockets:
            came = False
            try:
                while watcher.recv(65536):
                    came = True
            except BlockingIOError:
                pass
            except OSError:  # more than the socket could hold: something did change
                came = True
            if came:
                self.changes_ns.append(time.monotonic_ns())

    def close(self) -> None:
        """Close the sockets. A second call does nothing."""
        while self._sockets:
            self._sockets.pop().close()


def _listen(place: str) -> socket.socket:
    namespaces.enter(place)
    watcher = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    watcher.bind((0, RTMGRP_IPV6_ROUTE))
    watcher.setblocking(False)
    return watcher
