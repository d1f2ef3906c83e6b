"""Messages with known content, so that a receiver can check every byte.

| number (8 bytes) | body, which depends on the number (length - 8 bytes) |

Messages of at most 8 bytes have a body only.
"""

from __future__ import annotations

import random

OVERHEAD_BYTES = 8
_POOL_BYTES = 1 << 20


class MessageFactory:
    """Generates and checks the messages of one stream, each of up to ``length_bytes``.

    Two factories with the same seed and length make the same messages. Raise ValueError if ``length_bytes``
    leaves no room for a body after the number.
    """

    def __init__(self, length_bytes: int, seed: int) -> None:
        if length_bytes <= OVERHEAD_BYTES:
            raise ValueError(f"a message has more than {OVERHEAD_BYTES} bytes, not {length_bytes}")
        self.length_bytes = length_bytes
        pool = random.Random(seed).randbytes(_POOL_BYTES)
        self._pool = pool + (pool * (length_bytes // _POOL_BYTES + 1))[:length_bytes]

    def _body(self, number: int, length: int) -> bytes:
        start = number * 2_654_435_761 % _POOL_BYTES
        return self._pool[start : start + length]

    def fill(self, number: int, into: memoryview) -> None:
        """Write message ``number`` into a buffer. The length of the buffer is the length of the message."""
        if len(into) <= OVERHEAD_BYTES:
            into[:] = self._body(number, len(into))
            return
        into[:OVERHEAD_BYTES] = number.to_bytes(OVERHEAD_BYTES, "big")
        into[OVERHEAD_BYTES:] = self._body(number, len(into) - OVERHEAD_BYTES)

    def problem(self, number: int, message: memoryview) -> str | None:
        """Return the error in a buffer that should hold message ``number``; None if the buffer holds it."""
        if len(message) <= OVERHEAD_BYTES:
            good = message == self._body(number, len(message))
            return None if good else f"message {number}: its {len(message)} bytes are not what was sent"
        found = int.from_bytes(message[:OVERHEAD_BYTES], "big")
        if found != number:
            return f"message {number}: holds number {found}"
        body = self._body(number, len(message) - OVERHEAD_BYTES)
        if bytes(message[OVERHEAD_BYTES:]) != body:
            wrong = next(n for n, byte in enumerate(body, OVERHEAD_BYTES) if message[n] != byte)
            return f"message {number}: byte {wrong} of {len(message)} is not what was sent"
        return None
