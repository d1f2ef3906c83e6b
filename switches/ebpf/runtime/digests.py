"""Buffer digest messages for the controller, drop duplicates, handle acknowledgements (P4Runtime 9.9).

This module does no input or output. Time is an argument, in nanoseconds of any clock.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

Message = Hashable
LONGEST = 256  # maximum number of messages in a list if the client sets no limit


@dataclass(frozen=True)
class DigestConfig:
    """A digest's limits: the longest wait of a message, the largest list, the wait for an acknowledgement."""

    max_timeout_ns: int
    max_list_size: int
    ack_timeout_ns: int


@dataclass(frozen=True)
class ReadyList:
    """A list of digest messages that is ready to be sent to the controller."""

    digest: int
    number: int
    messages: tuple[Message, ...]


@dataclass
class _Digest:
    config: DigestConfig
    buffer: dict[Message, None] = field(default_factory=dict)
    since_ns: int = 0
    # Unacknowledged lists, by their numbers: the time when the list was sent, and its messages.
    sent: dict[int, tuple[int, frozenset[Message]]] = field(default_factory=dict)


class DigestQueue:
    """The digests of one switch that the client has configured, by id."""

    def __init__(self) -> None:
        self._digests: dict[int, _Digest] = {}
        self._numbers = 0

    @property
    def configs(self) -> dict[int, DigestConfig]:
        """The client's configuration of each digest, by id."""
        return {number: d.config for number, d in self._digests.items()}

    def configure(self, digest: int, config: DigestConfig | None) -> None:
        """Start a digest or change its configuration. If `config` is None, stop the digest."""
        if config is None:
            self._digests.pop(digest, None)
        elif digest in self._digests:
            self._digests[digest].config = config
        else:
            self._digests[digest] = _Digest(config)

    def offer(self, digest: int, message: Message, now_ns: int) -> list[ReadyList]:
        """Add a message, unless an equal message waits or is unacknowledged.

        If the list of messages is now full, return the list.
        """
        d = self._digests.get(digest)
        if d is None:
            return []
        self._forget(d, now_ns)
        if message in d.buffer or any(message in what for _, what in d.sent.values()):
            return []
        if not d.buffer:
            d.since_ns = now_ns
        d.buffer[message] = None
        full = len(d.buffer) >= (d.config.max_list_size or LONGEST)
        return [self._send(digest, d, now_ns)] if full or not d.config.max_timeout_ns else []

    def due(self, now_ns: int) -> list[ReadyList]:
        """Return the lists whose oldest message has waited for `max_timeout_ns`."""
        return [
            self._send(number, d, now_ns)
            for number, d in self._digests.items()
            if d.buffer and now_ns - d.since_ns >= d.config.max_timeout_ns
        ]

    def acknowledge(self, digest: int, number: int) -> None:
        """Record that the client has received a list.

        From now on, a new message that equals a message of this list is no longer dropped as a duplicate.
        """
        if digest in self._digests:
            self._digests[digest].sent.pop(number, None)

    def _send(self, number: int, d: _Digest, now_ns: int) -> ReadyList:
        self._numbers += 1
        ready = ReadyList(number, self._numbers, tuple(d.buffer))
        if d.config.ack_timeout_ns:
            d.sent[ready.number] = now_ns, frozenset(d.buffer)
        d.buffer.clear()
        return ready

    @staticmethod
    def _forget(d: _Digest, now_ns: int) -> None:
        old = [n for n, (when, _) in d.sent.items() if now_ns - when >= d.config.ack_timeout_ns]
        for n in old:
            del d.sent[n]
