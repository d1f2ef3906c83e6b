"""The application's posted writes: the ones still to be cut into packets, and the incomplete ones.

Completions come in the order of posting. At most `max_imms` writes with immediate are in flight at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final


class WorkRequest:
    """One posted write."""

    __slots__ = ("data", "imm", "last_psn", "length", "msn", "offset", "rkey", "rqmsn", "va", "wr_id")

    def __init__(
        self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None, msn: int, rqmsn: int
    ) -> None:
        self.wr_id = wr_id
        self.data = data
        self.length = len(data)
        self.va = va
        self.rkey = rkey
        self.imm = imm
        self.msn = msn
        self.rqmsn = rqmsn
        self.offset = 0
        """Bytes already cut into packets."""
        self.last_psn = -1
        """PSN of the last packet, once it is sent."""


_NEVER_POSTED: Final[deque[WorkRequest]] = deque()
"""The queue of a QP that has posted nothing yet, as a deque takes 760 bytes; shared and always empty."""


class SendQueue:
    """The posted writes of one queue pair."""

    def __init__(self, max_imms: int) -> None:
        self.max_imms = max_imms
        self.first: WorkRequest | None = None
        """The first one that is not yet cut into packets as a whole; it may be in part."""
        self._to_send = _NEVER_POSTED
        """That one and those after it."""
        self.open = _NEVER_POSTED
        """Not complete."""
        self._imms = 0
        """WRITE_IMMs begun and not complete."""
        self._msn = 0
        self._rqmsn = 0

    def post(self, wr_id: int, data: memoryview, va: int, rkey: int, imm: int | None) -> None:
        """Queue a write."""
        if self.open is _NEVER_POSTED:
            self._to_send, self.open = deque(), deque()
        request = WorkRequest(wr_id, data, va, rkey, imm, self._msn, self._rqmsn)
        self._msn = (self._msn + 1) & 0xFFFF
        if imm is not None:
            self._rqmsn = (self._rqmsn + 1) & 0xFFFF
        self._to_send.append(request)
        if self.first is None:
            self.first = request
        self.open.append(request)

    def may_begin(self, request: WorkRequest) -> bool:
        """Return whether the next packet of a write may go out, as far as immediates in flight decide."""
        return request.imm is None or request.offset > 0 or self._imms < self.max_imms

    def begin(self, request: WorkRequest) -> None:
        """Note that the first packet of a write goes out."""
        if request.imm is not None:
            self._imms += 1

    def end_first(self) -> None:
        """Note that the last packet of the first write goes out."""
        waiting = self._to_send
        waiting.popleft()
        self.first = waiting[0] if waiting else None

    def complete(self, una: int) -> list[WorkRequest]:
        """Take out the writes whose packets, all below PSN `una`, have arrived."""
        done: list[WorkRequest] = []
        requests = self.open
        while requests and 0 <= requests[0].last_psn < una:
            request = requests.popleft()
            if request.imm is not None:
                self._imms -= 1
            done.append(request)
        return done

    def holder(self, psn: int | None) -> WorkRequest | None:
        """Return the write that is not complete and has this PSN, or would have had it."""
        if psn is not None:
            for request in self.open:
                if request.last_psn < 0 or psn <= request.last_psn:
                    return request
        return None

    def clear(self) -> list[WorkRequest]:
        """Drop all writes; return the incomplete ones."""
        left = list(self.open)
        self.open.clear()
        self._to_send.clear()
        self.first = None
        return left
