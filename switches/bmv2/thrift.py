"""The two calls of BMv2's Thrift server that P4Runtime has no equal for: rate and depth of the queues.

Thrift's binary protocol for a call is a header (version and type, "service:method", sequence number), the
arguments as (type, id, value), and a zero. Two calls need no library.
"""

from __future__ import annotations

import socket
import struct

_CALL, _REPLY = 0x80010001, 0x80010002
_I32, _I64, _STOP = 8, 10, 0


class ThriftError(RuntimeError):
    """The switch refused a call, or answered something else than Thrift."""


def set_queue_depth(connection: socket.socket, port: int, packets: int) -> None:
    """Set how many packets the queue of a port holds. Raises ThriftError or OSError."""
    _call(connection, "set_egress_queue_depth", struct.pack("!BhiBhi", _I32, 1, port, _I32, 2, packets))


def set_queue_rate(connection: socket.socket, port: int, packets_per_s: int) -> None:
    """Set how fast the queue of a port is emptied. Raises ThriftError or OSError."""
    _call(connection, "set_egress_queue_rate", struct.pack("!BhiBhq", _I32, 1, port, _I64, 2, packets_per_s))


def _call(connection: socket.socket, method: str, arguments: bytes) -> None:
    name = f"simple_switch:{method}".encode()
    header = struct.pack("!Ii", _CALL, len(name)) + name + struct.pack("!i", 0)
    connection.sendall(header + arguments + bytes([_STOP]))
    kind, length = struct.unpack("!Ii", _take(connection, 8))
    if kind != _REPLY or not 0 <= length < 256:
        raise ThriftError(f"no reply to {method} (message type {kind:#x})")
    _take(connection, length + 4)
    field, _number, status = struct.unpack("!Bhi", _take(connection, 7))
    if field != _I32 or status != 0:
        raise ThriftError(f"{method} was refused ({status})")
    _take(connection, 1)


def _take(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ThriftError("the connection ended in the middle of an answer")
        data += part
    return data
