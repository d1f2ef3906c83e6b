"""The old name of ``rtnetlink``, for tests/switches/test_overload.py alone: delete it with its last user."""

from __future__ import annotations

from types import TracebackType

from testbed import rtnetlink
from testbed.rtnetlink import Request


class Netlink:
    """A socket in the namespace that the calling thread is in."""

    def __init__(self) -> None:
        self._route = rtnetlink.opened()

    def __enter__(self) -> Netlink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._route.close()

    def send(self, *requests: Request) -> None:
        """Has the kernel carry out requests in order. Raises OSError."""
        rtnetlink.send(self._route, requests, "refused")


def htb(index: int, _ifname: str, *, default_class: int) -> Request:
    """As ``rtnetlink.htb``."""
    return rtnetlink.htb(index, default_class=default_class)


def htb_class(index: int, _ifname: str, **how: int) -> Request:
    """As ``rtnetlink.htb_class``."""
    return rtnetlink.htb_class(index, **how)
