"""What an endpoint reports to its application: completions, and events of every other kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted

Completion = SendCompleted | ReceiveCompleted

_EVENT_LIMIT: Final = 1 << 16


class Reports:
    """Completions, all of them, and the last 65,536 other events, until the application takes them."""

    __slots__ = ("_completions", "_events")

    def __init__(self) -> None:
        self._events: deque[Event] = deque(maxlen=_EVENT_LIMIT)
        self._completions: deque[Completion] = deque()

    @property
    def message_waits(self) -> bool:
        """True while the application has not taken the completion of a message that arrived."""
        return any(isinstance(completion, ReceiveCompleted) for completion in self._completions)

    def add(self, event: Event) -> None:
        """Note an event."""
        if isinstance(event, (SendCompleted, ReceiveCompleted)):
            self._completions.append(event)
        else:
            self._events.append(event)

    def poll(self, limit: int) -> list[Completion]:
        """Take up to `limit` completions, in the order they came about."""
        return [self._completions.popleft() for _ in range(min(limit, len(self._completions)))]

    def next_event(self) -> Event | None:
        """Take the oldest event, completions among them; None when there is none."""
        if self._completions and (not self._events or self._completions[0].t_ns < self._events[0].t_ns):
            return self._completions.popleft()
        return self._events.popleft() if self._events else None

    def drain(self) -> Iterator[Event]:
        """Take all events, completions among them, oldest first."""
        while (event := self.next_event()) is not None:
            yield event


def message_view(
    data: bytes | bytearray | memoryview, imm: int | None, least_bytes: int, most_bytes: int
) -> memoryview:
    """Return the bytes of a message to write. Raises ValueError on a wrong length or a wrong immediate."""
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if not least_bytes <= len(view) <= most_bytes:
        raise ValueError(f"a message has {least_bytes} to {most_bytes} bytes, not {len(view)}")
    if imm is not None and not 0 <= imm <= 0xFFFFFFFF:
        raise ValueError(f"immediate data has 32 bits, not {imm}")
    return view
