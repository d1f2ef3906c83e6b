"""Endpoint operations under way: requests that belong to no connection and are never repeated [SPEC §6.5].

Requests time out in the order in which they were sent, so a dictionary in that order is all it takes.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hosts.mrc.endpoint import QueuePair
    from hosts.mrc.ev import Ev


class Purpose(Enum):
    """Why a request was sent."""

    USER = "user"
    """The user wants to know an EV's RTT."""
    REVERSE = "reverse"
    """An EV for answers is to be kept fresh [P1 §2.4]."""
    PORTS = "ports"
    """The peer is told the state of our ports [SPEC §7.4.8]."""


class Request:
    """One request that waits for its response."""

    __slots__ = ("attempt", "ev", "purpose", "qp", "sent_ns")

    def __init__(self, purpose: Purpose, qp: QueuePair, ev: Ev, sent_ns: int, attempt: int) -> None:
        self.purpose = purpose
        self.qp = qp
        self.ev = ev
        self.sent_ns = sent_ns
        self.attempt = attempt


class Requests:
    """Requests under way, by id."""

    _LIMIT = 4096

    def __init__(self, timeout_ns: int) -> None:
        self._timeout_ns = timeout_ns
        self._waiting: dict[int, Request] = {}
        self._next_id = 0

    def add(self, request: Request) -> int:
        """Note a request and return its id, 16 bits."""
        self._next_id = self._next_id + 1 & 0xFFFF
        self._waiting.pop(self._next_id, None)
        if len(self._waiting) >= self._LIMIT:
            del self._waiting[next(iter(self._waiting))]
        self._waiting[self._next_id] = request
        return self._next_id

    def answered(self, request_id: int) -> Request | None:
        """Take out the request that a response names."""
        return self._waiting.pop(request_id, None)

    def forget_updates(self, peers: frozenset[bytes]) -> None:
        """Take out all port updates for a peer: one answer is enough, and a newer update replaces them."""
        for number, request in list(self._waiting.items()):
            if request.purpose is Purpose.PORTS and request.qp.peers == peers:
                del self._waiting[number]

    def due_ns(self) -> int | None:
        """Return when the oldest request times out."""
        for request in self._waiting.values():
            return request.sent_ns + self._timeout_ns
        return None

    def expired(self, now_ns: int) -> list[tuple[int, Request]]:
        """Take out what has timed out."""
        late: list[tuple[int, Request]] = []
        for number, request in self._waiting.items():
            if request.sent_ns + self._timeout_ns > now_ns:
                break
            late.append((number, request))
        for number, _ in late:
            del self._waiting[number]
        return late
