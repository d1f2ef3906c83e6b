"""Protocol Buffers' wire format: fields of a message, and messages in a file, each behind its length.

It has the parts that execution traces need; a reader of nested messages calls it again. Source:
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_SHIFT: Final = 63
_MASK64: Final = (1 << 64) - 1

Field = tuple[int, int, int | bytes]
"""A field's number, its wire type, and its value: bytes of type BYTES, else an unsigned integer."""


class WireError(ValueError):
    """Bytes that are no message; the text names the error."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return an integer and the place after it. Raise WireError if it does not end or is too long."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("it ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
        shift += 7
        if shift > _MAX_SHIFT:
            raise WireError("a number has more than 64 bits")


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raise WireError for bytes that are none."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if not number:
            raise WireError("a field has the number 0")
        if kind == VARINT:
            value, at = varint(data, at)
            yield number, kind, value
            continue
        if kind == BYTES:
            length, at = varint(data, at)
        elif kind in (FIXED32, FIXED64):
            length = 4 if kind == FIXED32 else 8
        else:
            raise WireError(f"a field has the unknown wire type {kind}")
        if length > len(data) - at:
            raise WireError("it ends inside a field")
        piece = data[at : at + length]
        at += length
        yield number, kind, piece if kind == BYTES else int.from_bytes(piece, "little")


def packed(kind: int, value: int | bytes) -> Iterator[int]:
    """Yield the integers of a repeated field, packed or one by one. Raise WireError for bad bytes."""
    if isinstance(value, int):
        yield value
        return
    if kind != BYTES:
        raise WireError("a list of numbers has the wrong wire type")
    at = 0
    while at < len(value):
        number, at = varint(value, at)
        yield number


def messages(data: bytes) -> Iterator[bytes]:
    """Yield the messages of a file, each of which follows its length. Raise WireError for bad bytes."""
    at = 0
    while at < len(data):
        length, at = varint(data, at)
        if length > len(data) - at:
            raise WireError("it ends inside a message")
        yield data[at : at + length]
        at += length


def signed(value: int) -> int:
    """Return the value of an int32 or int64, which are sent as 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def zigzag(value: int) -> int:
    """Return the value of a sint32 or sint64."""
    return (value >> 1) ^ -(value & 1)


def double(value: int) -> float:
    """Return the value of a double."""
    return float(struct.unpack("<d", struct.pack("<Q", value))[0])


def single(value: int) -> float:
    """Return the value of a float."""
    return float(struct.unpack("<f", struct.pack("<I", value))[0])


def put_varint(value: int) -> bytes:
    """Return the bytes of an integer; a negative one has 64 bits."""
    value &= _MASK64
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_int(number: int, value: int) -> bytes:
    """Return a field with an integer."""
    return put_varint(number << 3 | VARINT) + put_varint(value)


def put_bytes(number: int, value: bytes | str) -> bytes:
    """Return a field with bytes, text or a message."""
    raw = value.encode() if isinstance(value, str) else value
    return put_varint(number << 3 | BYTES) + put_varint(len(raw)) + raw


def put_message(raw: bytes) -> bytes:
    """Return a message of a file, behind its length."""
    return put_varint(len(raw)) + raw
