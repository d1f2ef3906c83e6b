"""What an endpoint reports to its application: completions, and events of every other kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from hosts.rdma.events import Event, ReceiveCompleted, SendCompleted

Completion = SendCompleted | ReceiveCompleted

_EVENT_LIMIT: Final = 1 << 16


class Reports:
    """Completions, all of them, and the last 65,536 other events, until the application takes them."""

    __slots__ = ("_completions", "_events", "message_waits")

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_EVENT_LIMIT)
        self._completions: deque[Completion] = deque()
        self.message_waits = False
        """A message has arrived whose completion the application did not take yet."""

    def add(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, (SendCompleted, ReceiveCompleted)):
            self._completions.append(event)
            if isinstance(event, ReceiveCompleted):
                self.message_waits = True
        else:
            self._events.append(event)

    def poll(self, limit: int) -> list[Completion]:
        """Take up to `limit` completions, in the order they came about."""
        taken = [self._completions.popleft() for _ in range(min(limit, len(self._completions)))]
        self._took()
        return taken

    def _took(self) -> None:
        if not self._completions:
            self.message_waits = False

    def next_event(self) -> Event | None:
        """Take the oldest event, completions among them; None when there is none."""
        if self._completions and (not self._events or self._completions[0].t_ns < self._events[0].t_ns):
            completion = self._completions.popleft()
            self._took()
            return completion
        return self._events.popleft() if self._events else None

    def drain(self) -> Iterator[Event]:
        """Take all events, completions among them, oldest first."""
        while (event := self.next_event()) is not None:
            yield event


def message_view(data: bytes | bytearray | memoryview, imm: int | None) -> memoryview:
    """Return the bytes of a message to write. Raises ValueError on one too long, or a wrong immediate."""
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if len(view) > 0x7FFFFFFF:
        raise ValueError("a message has at most 2^31 - 1 bytes")
    if imm is not None and not 0 <= imm <= 0xFFFFFFFF:
        raise ValueError(f"immediate data has 32 bits, not {imm}")
    return view
