"""Messages that prove themselves: each carries its number and a hash, so that a receiver checks every byte.

| number (8) | body, which depends on the number (length - 24) | BLAKE2b-128 of all before (16) |

Messages too short for that are body alone.
"""

from __future__ import annotations

import hashlib
import random

NUMBER_BYTES = 8
DIGEST_BYTES = 16
OVERHEAD_BYTES = NUMBER_BYTES + DIGEST_BYTES
_POOL_BYTES = 1 << 20


class MessageFactory:
    """Makes and checks the messages of one stream, of up to ``length_bytes`` each.

    Two factories of equal seed and length make equal messages. Raises ValueError on a length with no body.
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
        """Writes message ``number`` into a buffer of exactly its length."""
        if len(into) <= OVERHEAD_BYTES:
            into[:] = self._body(number, len(into))
            return
        into[:NUMBER_BYTES] = number.to_bytes(NUMBER_BYTES, "big")
        into[NUMBER_BYTES:-DIGEST_BYTES] = self._body(number, len(into) - OVERHEAD_BYTES)
        into[-DIGEST_BYTES:] = hashlib.blake2b(into[:-DIGEST_BYTES], digest_size=DIGEST_BYTES).digest()

    def problem(self, number: int, message: memoryview) -> str | None:
        """What is wrong with a buffer that should hold message ``number``, or None."""
        if len(message) <= OVERHEAD_BYTES:
            good = message == self._body(number, len(message))
            return None if good else f"message {number}: its {len(message)} bytes are others"
        digest = hashlib.blake2b(message[:-DIGEST_BYTES], digest_size=DIGEST_BYTES).digest()
        if digest != bytes(message[-DIGEST_BYTES:]):
            return f"message {number}: hash does not match its bytes"
        found = int.from_bytes(message[:NUMBER_BYTES], "big")
        if found != number:
            return f"message {number}: holds message {found}"
        if message[NUMBER_BYTES:-DIGEST_BYTES] != self._body(number, len(message) - OVERHEAD_BYTES):
            return f"message {number}: holds another stream's bytes"
        return None
