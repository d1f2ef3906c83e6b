"""What an endpoint reports to its application: completions, and events of every other kind."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mrclab.hosts.rdma.events import Event, ReceiveCompleted, SendCompleted

Completion = SendCompleted | ReceiveCompleted

_EVENT_LIMIT: Final = 1 << 16
ADDRESSES: Final = 1 << 64


Note = Callable[[Callable[..., Event], tuple[object, ...]], None]
"""Takes an event's class and the values of its fields."""


def made_by(emit: Callable[[Event], None]) -> Note:
    """Return a function that makes each event at once and passes it on."""

    def note(kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        emit(kind(*values))

    return note


class Unmade:
    """The values of an event, from which it is made later.

    The classes of events are not compiled, so that making an event takes as long as sending a packet. After a
    loss it takes several times as long, since no cache holds that code. The repair of the loss comes first.
    """

    __slots__ = ("kind", "values")

    def __init__(self, kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        self.kind = kind
        self.values = values
        """Of the event's fields, in order."""


class Reports:
    """Completions, all of them, and the last 65,536 other events, until the application takes them."""

    __slots__ = ("_completions", "_events", "waiting")

    def __init__(self) -> None:
        self.waiting = False
        """There may be something to take."""
        self._events: deque[Event | Unmade] = deque(maxlen=_EVENT_LIMIT)
        self._completions: deque[Completion] = deque()

    @property
    def message_waits(self) -> bool:
        """True while the application has not taken the completion of a message that arrived."""
        return any(isinstance(completion, ReceiveCompleted) for completion in self._completions)

    def add(self, event: Event) -> None:
        """Note an event."""
        self.waiting = True
        if isinstance(event, (SendCompleted, ReceiveCompleted)):
            self._completions.append(event)
        else:
            self._events.append(event)

    def add_later(self, kind: Callable[..., Event], values: tuple[object, ...]) -> None:
        """Note an event that is no completion, and make it when the application takes it."""
        self.waiting = True
        self._events.append(Unmade(kind, values))

    def poll(self, limit: int) -> list[Completion]:
        """Take up to `limit` completions, in the order they came about."""
        return [self._completions.popleft() for _ in range(min(limit, len(self._completions)))]

    def next_event(self) -> Event | None:
        """Take the oldest event, completions among them; None when there is none."""
        if not self._events:
            if self._completions:
                return self._completions.popleft()
            self.waiting = False
            return None
        first = self._events[0]
        event = first.kind(*first.values) if isinstance(first, Unmade) else first
        if self._completions and self._completions[0].t_ns < event.t_ns:
            self._events[0] = event
            return self._completions.popleft()
        self._events.popleft()
        return event

    def drain(self) -> Iterator[Event]:
        """Take all events, completions among them, oldest first."""
        while (event := self.next_event()) is not None:
            yield event


def message_view(
    data: bytes | bytearray | memoryview,
    imm: int | None,
    least_bytes: int,
    most_bytes: int,
    remote_va: int,
    rkey: int,
) -> memoryview:
    """Return the bytes of a message to write. Raise ValueError on values that no packet can carry."""
    view = memoryview(data)
    if view.format != "B" or view.ndim != 1:
        view = view.cast("B")
    if not least_bytes <= len(view) <= most_bytes:
        raise ValueError(f"a message has {least_bytes} to {most_bytes} bytes, not {len(view)}")
    if imm is not None and not 0 <= imm <= 0xFFFFFFFF:
        raise ValueError(f"immediate data has 32 bits, not {imm}")
    if not 0 <= remote_va <= ADDRESSES - len(view):
        raise ValueError(f"{len(view)} bytes at {remote_va:#x} do not fit into addresses of 64 bits")
    if not 0 <= rkey <= 0xFFFFFFFF:
        raise ValueError(f"a memory key has 32 bits, not {rkey:#x}")
    return view
